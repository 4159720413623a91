#include "core/report/html_parts.h"

namespace yoke {

const char* const report_style = R"css(
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--line:#e3e6ea;--text:#1b1f24;--soft:#636c76;
--c1:#2f6fde;--c2:#e0762b;--c3:#1f9d6b;--c4:#8654d6;--c5:#c9408f;--c6:#1592b0;--c7:#a3abb5;
--ok:#1a7f4b;--warn:#a86200;--bad:#cf2f3d}
@media(prefers-color-scheme:dark){:root{--page:#0e1116;--card:#171b22;--line:#2a303a;--text:#e6e9ee;--soft:#95a0ad;
--c1:#6aa3ff;--c2:#ff9f5a;--c3:#4fd29c;--c4:#b18cff;--c5:#f47fc0;--c6:#4cc9e6;--c7:#6b7480;
--ok:#4fd29c;--warn:#f0b35a;--bad:#ff7b84}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--text);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1060px;margin:0 auto;padding:28px 20px 48px}
h1{font-size:28px;line-height:1.2;margin:0;overflow-wrap:anywhere}
h2{font-size:16px;margin:0 0 10px}
header{margin-bottom:20px}
header div{display:flex;align-items:center;gap:12px;flex-wrap:wrap}
header p{margin:6px 0 0;color:var(--soft)}
.badge{font-size:13px;font-weight:600;border:1px solid;border-radius:99px;padding:2px 12px}
.ok{color:var(--ok)}.warn{color:var(--warn)}.bad{color:var(--bad)}
.figures{display:grid;grid-template-columns:repeat(4,1fr);gap:12px;margin-bottom:14px}
.card{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:16px 18px;min-width:0}
.figures .card{padding:12px 16px;margin:0}
.figures dt{color:var(--soft);font-size:13px}
.figures dd{margin:0;font-size:22px;font-weight:600;font-variant-numeric:tabular-nums;line-height:1.35}
.figures dd.none{font-size:16px;font-weight:400;color:var(--soft);line-height:1.85}
.figures small{color:var(--soft);font-size:12.5px;display:block;line-height:1.35}
.grid2{display:grid;grid-template-columns:1fr 1fr;gap:14px;margin-bottom:14px}
.grid2>.all{grid-column:1/-1}
.head{display:flex;justify-content:space-between;gap:8px 16px;flex-wrap:wrap;align-items:baseline}
.legend{color:var(--soft);font-size:13px;display:flex;gap:4px 14px;flex-wrap:wrap;margin:0;padding:0;list-style:none}
.swatch{display:inline-block;width:10px;height:10px;border-radius:3px;background:var(--c);margin-right:6px}
.swatch.hollow{background:none;border:1.5px solid var(--c)}
.swatch.dash{border-radius:0;width:0;height:12px;background:none;border-left:2px dashed var(--bad);vertical-align:-1px}
.c1{--c:var(--c1)}.c2{--c:var(--c2)}.c3{--c:var(--c3)}.c4{--c:var(--c4)}.c5{--c:var(--c5)}.c6{--c:var(--c6)}.c7{--c:var(--c7)}
svg{display:block;width:100%;overflow:visible}
.chart{height:auto;touch-action:pan-y}
.chart text{fill:var(--soft);font-size:11px;font-variant-numeric:tabular-nums}
.chart.wide text{font-size:10.5px}
.grid{stroke:var(--line)}.axis{stroke:var(--soft);stroke-opacity:.6}
.curve{fill:none;stroke:var(--c);stroke-width:1.6;stroke-linejoin:round;stroke-linecap:round}
.dots{fill:none;stroke:var(--c);stroke-width:6;stroke-linecap:round}
.mark{stroke:var(--bad);stroke-width:1.5;stroke-dasharray:4 3}
.cursor{stroke:var(--soft);stroke-opacity:.7}
.stack{height:26px;border-radius:6px;overflow:hidden;margin-bottom:12px}
rect{fill:var(--c)}rect.hollow{fill:none;stroke:var(--c);stroke-width:2}
.bar{height:9px;margin:2px 0;overflow:hidden;border-radius:2px}
table{width:100%;border-collapse:collapse;font-size:14px}
th{font-weight:500;color:var(--soft);font-size:13px;text-align:left}
th,td{padding:5px 10px 5px 0;border-bottom:1px solid var(--line);vertical-align:top}
tr:last-child td{border-bottom:0}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td.n:last-child,th.n:last-child{padding-right:0}
td.b{width:34%;vertical-align:middle}
td code{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
td.v{overflow-wrap:anywhere}
tr.default td,.soft{color:var(--soft)}
.messages{margin:0;padding:0;list-style:none}
.messages li{padding:6px 0;border-bottom:1px solid var(--line);overflow-wrap:anywhere}
.messages li:last-child{border:0}
.toggle input{position:absolute;opacity:0}
.toggle label{font-size:13px;color:var(--soft);border:1px solid var(--line);padding:1px 10px;cursor:pointer}
.toggle label:first-of-type{border-radius:7px 0 0 7px;border-right:0}
.toggle label:last-of-type{border-radius:0 7px 7px 0}
.toggle input:checked+label{background:var(--c1);border-color:var(--c1);color:var(--card)}
.toggle input:focus-visible+label{outline:2px solid var(--c1);outline-offset:2px}
.two .log{display:none}
.two:has(#log:checked) .log{display:block}
.two:has(#log:checked) .linear{display:none}
#tip{position:fixed;pointer-events:none;background:var(--text);color:var(--page);font-size:12.5px;line-height:1.45;border-radius:7px;
padding:5px 10px;display:none;white-space:pre;font-variant-numeric:tabular-nums;z-index:1}
footer{color:var(--soft);font-size:13px;margin-top:20px}
@media(max-width:760px){main{padding:18px 12px 32px}.figures{grid-template-columns:1fr 1fr}.grid2{grid-template-columns:minmax(0,1fr)}
.card{padding:12px 14px}h1{font-size:23px}.chart text{font-size:16px}.chart.wide text{font-size:22px}.figures dd{font-size:19px}
td.b,th.b{display:none}th.n{white-space:normal}th,td{padding-right:8px}.curve{stroke-width:2.2}}
@media print{body{background:none}.card{break-inside:avoid}.toggle{display:none}}
)css";

const char* const report_script = R"js(
const tip = document.getElementById('tip');
for (const svg of document.querySelectorAll('svg.chart')) {
  const [x0, x1] = svg.dataset.x.split(' ').map(Number), [left, right] = svg.dataset.box.split(' ').map(Number);
  const curves = [...svg.querySelectorAll('.curve')].map(path => {
    const n = path.dataset.points.split(' ').map(Number), points = [];
    for (let i = 0; i + 1 < n.length; i += 2) points.push([n[i], n[i + 1]]);
    return {name: path.dataset.name, points};
  });
  const cursor = svg.querySelector('.cursor'), box = svg.viewBox.baseVal;
  const nearest = (points, x) => {
    let low = 0, high = points.length - 1;
    while (high - low > 1) { const m = low + high >> 1; points[m][0] < x ? low = m : high = m; }
    return x - points[low][0] < points[high][0] - x ? points[low] : points[high];
  };
  const number = v => Math.abs(v) >= 1000 ? Math.round(v).toLocaleString('en') : String(+v.toPrecision(5));
  const leave = () => { tip.style.display = 'none'; cursor.removeAttribute('d'); };
  const move = event => {
    const place = svg.getBoundingClientRect(), u = (event.clientX - place.left) * box.width / place.width;
    const main = curves.find(c => c.points.length);
    if (!main || u < left - 5 || u > right + 5) return leave();
    const x = nearest(main.points, x0 + (u - left) / (right - left) * (x1 - x0))[0];
    const rows = [svg.dataset.xName + ' ' + number(x)];
    for (const c of curves) if (c.points.length) {
      const p = nearest(c.points, x);
      rows.push(c.name + '  ' + number(p[1]) + (p[0] == x ? '' : '  (at ' + number(p[0]) + ')'));
    }
    const at = left + (x - x0) / (x1 - x0) * (right - left);
    cursor.setAttribute('d', 'M' + at + ' 10V' + (box.height - 32));
    tip.textContent = rows.join('\n');
    tip.style.display = 'block';
    const over = event.clientX + 16 + tip.offsetWidth > innerWidth;
    tip.style.left = Math.max(4, over ? event.clientX - 16 - tip.offsetWidth : event.clientX + 16) + 'px';
    tip.style.top = Math.max(4, event.clientY - tip.offsetHeight - 8) + 'px';
  };
  svg.addEventListener('pointermove', move);
  svg.addEventListener('pointerdown', move);
  svg.addEventListener('pointerleave', leave);
}
)js";

}  // namespace yoke
