#include "core/report/history.h"

namespace yoke {
namespace {

class Builder {
 public:
  RankHistory history;

  void add(const StartEvent& start, std::int64_t time_ns) {
    history.end = nullptr;
    if (!history.starts.empty()) {
      std::int64_t reached =
          steps_in_attempt_ > 0 ? history.steps.back().event->step + 1 : history.starts.back()->first_step;
      history.restarts.push_back({start.attempt, "", reached, start.first_step, {}});
      history.restart_times.push_back(time_ns);
      last_time_ =
          steps_in_attempt_ > 0 && start.attempt > 0 ? std::optional(history.steps.back().time_ns) : std::nullopt;
    }
    history.starts.push_back(&start);
    steps_in_attempt_ = 0;
    undo(start.first_step);
  }

  void add(const StepEvent& step, std::int64_t time_ns) {
    undo(step.step);
    history.steps.push_back({&step, time_ns, steps_in_attempt_++});
    if (last_time_ && step.step >= history.restarts.back().at_step) {
      double since = static_cast<double>(time_ns - *last_time_) * 1e-9;
      history.restarts.back().lost_seconds = since - step.seconds.total;
      last_time_.reset();
    }
  }

  void add(const ValidationEvent& validation, std::int64_t) {
    undo_validations(validation.step);
    history.validations.push_back(&validation);
  }
  void add(const EndEvent& end, std::int64_t) { history.end = &end; }
  template <class Other>
  void add(const Other&, std::int64_t) {}

 private:
  // Whatever came after `done` steps is about to be done again.
  void undo(std::int64_t done) {
    while (!history.steps.empty() && history.steps.back().event->step >= done) history.steps.pop_back();
    undo_validations(done);
  }
  void undo_validations(std::int64_t done) {
    while (!history.validations.empty() && history.validations.back()->step >= done) history.validations.pop_back();
  }

  std::int64_t steps_in_attempt_ = 0;
  std::optional<std::int64_t> last_time_;  // of the last step before the restart from which we have not recovered
};

}  // namespace

std::map<std::int64_t, RankHistory> rank_histories(const std::vector<Record>& records) {
  std::map<std::int64_t, Builder> builders;
  for (const Record& record : records) {
    Builder& builder = builders[record.rank];
    std::visit([&](const auto& event) { builder.add(event, record.time_ns); }, record.event);
  }
  std::map<std::int64_t, RankHistory> histories;
  for (auto& [rank, builder] : builders) histories.emplace(rank, std::move(builder.history));
  return histories;
}

}  // namespace yoke
