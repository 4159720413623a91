// ZeRO 3: the parameters of a unit are gathered when one of them is about to be used, and their memory is taken away
// when other units have been used since. The model does not know.
//
// Who runs the model calls before_use() for each weight before its values are read, in forward and backward: functions
// of ours do it themselves, for any other operation of libtorch watch_operations() does. A tensor counts as a weight
// when it shares memory with one (views, what autograd has saved).
//
// All ranks must use their weights in the same order. The order of the last pass tells which unit comes next; that one
// is gathered ahead. Not thread-safe, but different objects may be used from different threads.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/units.h"
#include "train/parallel/flat_parameters.h"

namespace yoke {

class GatherOnUse {
 public:
  // flat must be of stage 3 and outlive it.
  explicit GatherOnUse(FlatParameters& flat);
  ~GatherOnUse();
  GatherOnUse(const GatherOnUse&) = delete;
  GatherOnUse& operator=(const GatherOnUse&) = delete;

  // Between begin() and end() lies a pass; those of one name use the units in the same order. end() takes all memory
  // away, and says what went wrong: after an error values are zeros until then.
  void begin(const std::string& pass);
  Result<Seconds> end();                               // seconds waited for gathers
  Seconds waited() const { return Seconds(waited_); }  // in this pass so far

  // Gathers every unit and keeps it until release_all(): for code that looks at all parameters.
  Result<void> gather_all();
  void release_all();

  // A pass in which other ranks only follow: `before` is called ahead of each gather, and none is started before its
  // unit is used. Null: no such pass. Who follows takes part in a gather by its number, and keeps nothing of it.
  void announce(std::function<Result<void>(int unit)> before) { announce_ = std::move(before); }
  Result<void> take_part(int unit);

  static void before_use(const at::Tensor& tensor);
  // Calls before_use() for the inputs of every operation that this thread starts (and of its backward) until the
  // returned handle is given to stop_watching().
  static at::CallbackHandle watch_operations();
  static void stop_watching(at::CallbackHandle handle);

 private:
  struct Ahead {
    int unit;
    at::Tensor buffer, shard;
    WorkPtr work;
  };
  static constexpr std::size_t most_held = 2;  // the unit in use and the one before, which one operation may need both

  void use(int unit);
  int next_after(int unit);
  Result<Ahead> start(int unit);
  void hold(Ahead gathered);
  bool held(int unit) const;

  FlatParameters& flat_;
  std::map<std::string, std::vector<int>> orders_;  // of the units, by pass
  std::vector<int>* known_ = nullptr;               // the order of this pass, if there was one before
  std::vector<int> seen_;                           // in this pass
  std::string pass_;
  int current_ = -1;
  std::vector<int> held_;  // the last used at the end
  bool keep_all_ = false;
  std::optional<Ahead> ahead_;
  std::function<Result<void>(int)> announce_;
  std::optional<Error> error_;
  double waited_ = 0;
};

}  // namespace yoke
