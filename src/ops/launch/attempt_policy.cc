#include "ops/launch/attempt_policy.h"

#include <algorithm>
#include <csignal>

namespace yoke {

void AttemptPolicy::kill_after(double seconds, std::int64_t now) {
  std::int64_t time = now + static_cast<std::int64_t>(seconds * 1e9);
  deadline_ = std::min(deadline_.value_or(time), time);
}

std::vector<int> AttemptPolicy::on_end(const ProcessEnd& end, std::int64_t now) {
  if (end.status.ok()) return {};
  if (cause_ || stop_signal_ != 0) {
    bool ours = std::find(sent_.begin(), sent_.end(), end.status.signal) != sent_.end();
    if (!ours) also_failed_.push_back(end);
    return {};
  }
  cause_ = end;
  kill_after(grace_.peers, now);
  sent_.push_back(SIGTERM);
  return {SIGTERM};
}

bool AttemptPolicy::failed_only_with(int code) const {
  auto with_code = [code](const ProcessEnd& end) { return end.status.signal == 0 && end.status.code == code; };
  return cause_ && with_code(*cause_) && std::all_of(also_failed_.begin(), also_failed_.end(), with_code);
}

std::vector<int> AttemptPolicy::on_signal(int number, std::int64_t now) {
  bool stops = number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGQUIT;
  if (!stops) return {number};
  bool again = number == SIGINT && stop_signal_ == SIGINT;
  if (stop_signal_ == 0) stop_signal_ = number;
  if (again) {
    deadline_ = now;
    return on_time(now);
  }
  kill_after(grace_.stop, now);
  sent_.push_back(number);
  return {number};
}

std::vector<int> AttemptPolicy::on_time(std::int64_t now) {
  if (!deadline_ || now < *deadline_) return {};
  deadline_.reset();
  sent_.push_back(SIGKILL);
  return {SIGKILL};
}

}  // namespace yoke
