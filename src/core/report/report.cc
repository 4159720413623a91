#include "core/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "core/report/history.h"
#include "core/report/report_config.h"

namespace yoke {
namespace {

using Histories = std::map<std::int64_t, RankHistory>;

template <class Owner>
struct Column {
  const char* name;
  std::optional<double> (*value)(const Owner&);
};

constexpr Column<StepSeconds> step_parts[] = {
    {"data", [](const StepSeconds& s) { return s.data; }},
    {"forward", [](const StepSeconds& s) { return s.forward; }},
    {"backward", [](const StepSeconds& s) { return s.backward; }},
    {"communication_exposed", [](const StepSeconds& s) { return s.communication_exposed; }},
    {"optimizer", [](const StepSeconds& s) { return s.optimizer; }},
    {"checkpoint", [](const StepSeconds& s) { return s.checkpoint; }},
};

std::optional<double> as_number(std::optional<std::int64_t> value) {
  return value ? std::optional(static_cast<double>(*value)) : std::nullopt;
}

constexpr Column<MemoryBytes> memory_parts[] = {
    {"parameters", [](const MemoryBytes& m) { return as_number(m.parameters); }},
    {"gradients", [](const MemoryBytes& m) { return as_number(m.gradients); }},
    {"optimizer", [](const MemoryBytes& m) { return as_number(m.optimizer); }},
    {"activations", [](const MemoryBytes& m) { return as_number(m.activations); }},
    {"communication", [](const MemoryBytes& m) { return as_number(m.communication); }},
    {"checkpoint", [](const MemoryBytes& m) { return as_number(m.checkpoint); }},
};

std::optional<double> mean(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::optional<double> median(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

std::optional<double> speed_of(const StepEvent& step) {
  if (step.tokens_per_second) return step.tokens_per_second;
  if (step.tokens > 0 && step.seconds.total > 0) return static_cast<double>(step.tokens) / step.seconds.total;
  return std::nullopt;
}

// The first few steps of an attempt are not typical.
std::int64_t cold_steps(std::size_t steps) {
  return steps < 2 ? 0 : std::clamp<std::int64_t>(static_cast<std::int64_t>(steps) / 10, 1, 5);
}

void add_best(std::optional<Point>& best, Point point) {
  if (std::isfinite(point.y) && (!best || point.y < best->y)) best = point;
}

// Loss, norm and speed are the same on all ranks, so the lowest rank that has steps speaks for all.
void add_curves(const RankHistory& lead, Report& report) {
  std::int64_t cold = cold_steps(lead.steps.size()), tokens = 0;
  std::vector<double> speeds, mfus;
  for (const CountedStep& counted : lead.steps) {
    const StepEvent& step = *counted.event;
    double x = static_cast<double>(step.step + 1);
    report.loss.push_back({x, step.loss});
    report.grad_norm.push_back({x, step.grad_norm});
    add_best(report.best_loss, report.loss.back());
    if (!std::isfinite(step.loss)) ++report.losses_not_finite;
    report.steps_skipped += step.skipped();
    tokens += step.tokens;
    bool warm = counted.index >= cold;
    report.warm_steps += warm;
    if (auto speed = speed_of(step)) {
      report.tokens_per_second.push_back({x, *speed});
      if (warm) speeds.push_back(*speed);
    }
    if (warm && step.mfu) mfus.push_back(*step.mfu);
  }
  report.median_tokens_per_second = median(speeds);
  report.mean_tokens_per_second = mean(speeds);
  report.mean_mfu = mean(mfus);
  if (!lead.steps.empty()) {
    report.steps_done = lead.steps.back().event->step + 1;
    report.tokens = tokens;
    report.first_loss = report.loss.front();
    report.last_loss = report.loss.back();
  } else if (!lead.starts.empty()) {
    report.steps_done = lead.starts.back()->first_step;
  }
  for (const ValidationEvent* validation : lead.validations) {
    report.validation_loss.push_back({static_cast<double>(validation->step + 1), validation->loss});
    report.last_validation = report.validation_loss.back();
    add_best(report.best_validation, report.validation_loss.back());
  }
}

void add_step_parts(const Histories& histories, Report& report) {
  std::vector<double> totals;
  std::optional<double> sums[std::size(step_parts)];
  for (const auto& [rank, history] : histories) {
    std::int64_t cold = cold_steps(history.steps.size());
    for (const CountedStep& step : history.steps) {
      if (step.index < cold) continue;
      totals.push_back(step.event->seconds.total);
      for (std::size_t i = 0; i < std::size(step_parts); ++i) {
        if (auto value = step_parts[i].value(step.event->seconds)) sums[i] = sums[i].value_or(0) + *value;
      }
    }
  }
  report.mean_step_seconds = mean(totals);
  report.median_step_seconds = median(totals);
  double rest = report.mean_step_seconds.value_or(0);
  bool any = false;
  for (std::size_t i = 0; i < std::size(step_parts); ++i) {
    // A step that does not tell of a part, such as a checkpoint, leaves that time in "other".
    if (sums[i]) *sums[i] /= static_cast<double>(totals.size());
    any = any || sums[i];
    rest -= sums[i].value_or(0);
    report.step_parts.push_back({step_parts[i].name, sums[i]});
  }
  if (any && rest > 0) report.step_parts.push_back({"other", rest});
}

void add_memory_parts(const Histories& histories, Report& report) {
  for (const auto& part : memory_parts) report.memory_parts.push_back({part.name, {}, {}});
  auto raise = [](std::optional<double>& peak, std::optional<double> value) {
    if (value) peak = std::max(peak.value_or(*value), *value);
  };
  for (const auto& [rank, history] : histories) {
    for (const CountedStep& step : history.steps) {
      const MemoryBytes& memory = step.event->memory;
      raise(report.peak_memory.measured, as_number(memory.peak_bytes));
      for (std::size_t i = 0; i < std::size(memory_parts); ++i) {
        raise(report.memory_parts[i].measured, memory_parts[i].value(memory));
      }
    }
  }
}

void add_starts(const Histories& histories, const RankHistory& lead, Report& report) {
  std::set<std::string> hosts, differing;
  for (const auto& [rank, history] : histories) {
    if (history.starts.empty()) continue;
    if (auto seconds = history.starts.front()->startup_seconds) {
      report.startup_seconds = std::max(report.startup_seconds.value_or(*seconds), *seconds);
    }
    const StartEvent& start = *history.starts.back();
    if (!start.host.empty()) hosts.insert(start.host);
    for (const auto& [name, version] : start.versions) {
      auto [entry, fresh] = report.versions.emplace(name, version);
      if (!fresh && entry->second != version) differing.insert(name);
    }
  }
  report.hosts.assign(hosts.begin(), hosts.end());
  for (const std::string& name : differing) {
    report.problems.push_back(fmt::format("the ranks ran with different versions of {}", name));
  }
  if (lead.starts.empty()) return;
  const StartEvent& start = *lead.starts.back();
  report.world_size = start.world_size;
  report.parameters = start.parameters;
  report.device = start.device;
}

// Launcher and ranks tell two halves of each restart: why, and what it cost. Attempts count from 0 in each session, so
// the launcher's half is the last one of that attempt before the ranks went on.
void add_restarts(const std::vector<Record>& records, const RankHistory& lead, Report& report) {
  struct Told {
    std::int64_t time_ns;
    ReportRestart restart;
  };
  std::vector<Told> told;
  for (const Record& record : records) {
    if (const auto* restart = std::get_if<RestartEvent>(&record.event))
      told.push_back({record.time_ns, {restart->attempt, restart->reason, {}, {}, {}}});
  }
  for (std::size_t i = 0; i < lead.restarts.size(); ++i) {
    Told* why = nullptr;
    for (Told& each : told) {
      if (each.restart.attempt == lead.restarts[i].attempt && each.time_ns <= lead.restart_times[i]) why = &each;
    }
    if (why == nullptr || why->restart.at_step) {  // nobody told, or that was for an earlier one
      told.push_back({lead.restart_times[i], lead.restarts[i]});
      continue;
    }
    std::string reason = std::move(why->restart.reason);
    why->restart = lead.restarts[i];
    why->restart.reason = std::move(reason);
  }
  std::ranges::stable_sort(told, {}, &Told::time_ns);
  for (Told& each : told) report.restarts.push_back(std::move(each.restart));
}

// Seconds in which nobody trained: each session but the first begins with the launcher's record of a resume.
double seconds_between_sessions(const std::vector<Record>& records) {
  double seconds = 0;
  for (const Record& record : records) {
    const auto* restart = std::get_if<RestartEvent>(&record.event);
    if (restart == nullptr || restart->attempt > 0) continue;
    std::optional<std::int64_t> before;
    for (const Record& other : records) {
      if (other.time_ns < record.time_ns) before = std::max(before.value_or(other.time_ns), other.time_ns);
    }
    if (before) seconds += static_cast<double>(record.time_ns - *before) * 1e-9;
  }
  return seconds;
}

void add_checkpoints_and_messages(const std::vector<Record>& records, Report& report) {
  std::set<std::int64_t> steps;  // one that was written again after a restart counts once
  std::vector<double> seconds;
  std::map<std::pair<bool, std::string>, std::size_t> known;
  for (const Record& record : records) {
    if (const auto* checkpoint = std::get_if<CheckpointEvent>(&record.event)) {
      steps.insert(checkpoint->step);
      seconds.push_back(checkpoint->seconds);
      report.last_checkpoint_step = checkpoint->step;
      report.last_checkpoint_bytes = checkpoint->bytes;
    } else if (const auto* message = std::get_if<MessageEvent>(&record.event)) {
      auto [entry, fresh] = known.emplace(std::pair(message->error, message->what), report.messages.size());
      if (fresh) {
        report.messages.push_back({message->error, record.rank, message->what, message->hint, 1});
      } else {
        ++report.messages[entry->second].count;
      }
    }
  }
  report.checkpoints = static_cast<std::int64_t>(steps.size());
  report.mean_checkpoint_seconds = mean(seconds);
}

// The launcher has the last word on an attempt; without one, the ranks have.
std::string outcome_of(const std::vector<Record>& records, const Histories& histories) {
  std::string outcome;
  for (const Record& record : records) {
    if (record.rank >= 0) continue;
    if (std::holds_alternative<RestartEvent>(record.event)) outcome.clear();
    if (const auto* end = std::get_if<EndEvent>(&record.event)) outcome = end->outcome;
  }
  if (!outcome.empty()) return outcome;
  bool all_ended = false;
  std::set<std::string> outcomes;
  for (const auto& [rank, history] : histories) {
    if (rank < 0) continue;
    if (outcomes.empty()) all_ended = true;
    all_ended = all_ended && history.end != nullptr;
    outcomes.insert(history.end != nullptr ? history.end->outcome : "");
  }
  for (const char* worst : {"failed", "stopped"}) {
    if (outcomes.contains(worst)) return worst;
  }
  return all_ended ? *outcomes.begin() : "unfinished";
}

}  // namespace

std::optional<std::int64_t> ReportRestart::repeated_steps() const {
  if (!at_step || !resumed_at) return std::nullopt;
  return std::max<std::int64_t>(0, *at_step - *resumed_at);
}

Report make_report(const RunData& data) {
  Report report;
  report.folder = data.folder;
  report.problems = data.problems;

  Histories histories = rank_histories(data.records);
  const RankHistory nobody;
  const RankHistory* lead = &nobody;
  for (const auto& [rank, history] : histories) {
    if (rank >= 0 && lead->steps.empty() && (lead == &nobody || !history.steps.empty())) lead = &history;
  }

  add_curves(*lead, report);
  add_step_parts(histories, report);
  add_memory_parts(histories, report);
  add_starts(histories, *lead, report);
  add_restarts(data.records, *lead, report);
  add_checkpoints_and_messages(data.records, report);
  report.outcome = outcome_of(data.records, histories);
  if (!data.records.empty()) {
    auto [first, last] = std::minmax_element(data.records.begin(), data.records.end(),
                                             [](const Record& a, const Record& b) { return a.time_ns < b.time_ns; });
    report.start_ns = first->time_ns;
    if (first != last) {
      report.wall_seconds =
          static_cast<double>(last->time_ns - first->time_ns) * 1e-9 - seconds_between_sessions(data.records);
    }
  }
  if (!data.run_json.empty()) read_run_json(data.run_json, report);
  if (!data.plan_json.empty()) read_plan_json(data.plan_json, report);
  if (report.name.empty()) report.name = "run";
  return report;
}

}  // namespace yoke
