#include "train/comm/shared_memory.h"

#include <ATen/ATen.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <limits>
#include <numeric>
#include <optional>

#include "core/base/text.h"
#include "os/clock.h"
#include "os/devices.h"
#include "os/process_table.h"
#include "os/shared_mapping.h"
#include "train/comm/group_memory.h"
#include "train/comm/reduce.h"
#include "train/comm/segments.h"

namespace yoke {
namespace {

// The group's blocks, and who keeps their memory. Between threads all ranks hold the same object.
struct GroupMemory {
  std::string name;
  int size = 0;
  Seconds timeout = Seconds(0);
  bool threads = false;
  SharedMapping mapping;
  RankBlock* blocks = nullptr;
  std::shared_ptr<GroupMemory> outermost;  // null: this is it
  std::vector<int> numbers;                // of the ranks, as people know them, also of those on other hosts
  // Between threads: the tensors of what is under way, by rank and slot, so that they stay when a rank gives up while
  // another reads them.
  std::vector<std::array<Collective, post_window>> kept;

  RankBlock& block(int rank) const { return blocks[rank]; }
  // Place of a rank in the outermost group; -1: it is on another host.
  int outermost_rank(int number) const {
    const std::vector<int>& all = outermost != nullptr ? outermost->numbers : numbers;
    auto found = std::find(all.begin(), all.end(), number);
    return found == all.end() ? -1 : static_cast<int>(found - all.begin());
  }
  RankBlock* outermost_block(int number) const {
    int rank = outermost_rank(number);
    if (rank < 0) return nullptr;
    return outermost != nullptr ? &outermost->block(rank) : &block(rank);
  }
};

// The large buffers of the ranks of an outermost group, which its subgroups reach too.
struct Segments {
  OwnSegments own;
  std::vector<PeerSegments> peers;  // by rank of the outermost group
};

std::shared_ptr<GroupMemory> unmapped_group(const std::string& name, std::vector<int> numbers, Seconds timeout,
                                            bool threads) {
  auto group = std::make_shared<GroupMemory>();
  group->name = name;
  group->size = static_cast<int>(numbers.size());
  group->timeout = timeout;
  group->threads = threads;
  group->kept.resize(numbers.size());
  group->numbers = std::move(numbers);
  return group;
}

Result<std::shared_ptr<GroupMemory>> new_group(const std::string& name, std::vector<int> numbers, Seconds timeout,
                                               bool threads) {
  auto group = unmapped_group(name, std::move(numbers), timeout, threads);
  YOKE_TRY(group->mapping, SharedMapping::create(group_bytes(group->size)));
  group->blocks = reinterpret_cast<RankBlock*>(group->mapping.data());
  for (int r = 0; r < group->size; ++r) new (&group->block(r)) RankBlock;
  return group;
}

// A group of processes that its first rank has made; null when its memory cannot be mapped.
std::shared_ptr<GroupMemory> join_group(const std::string& name, std::vector<int> numbers, Seconds timeout, int rank,
                                        pid_t owner, int fd) {
  auto group = unmapped_group(name, std::move(numbers), timeout, false);
  auto mapping = SharedMapping::open(owner, fd, group_bytes(group->size));
  if (!mapping) return nullptr;
  group->mapping = *std::move(mapping);
  group->blocks = reinterpret_cast<RankBlock*>(group->mapping.data());
  group->block(rank).pid.store(getpid());
  return group;
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

std::byte* bytes_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.mutable_data_ptr()); }

// How the data of a collective travels.
enum class Path { payload, direct, staging };

// A collective that this rank has started.
struct Pending {
  Collective collective;
  std::optional<Path> path;  // known once all have announced it
  // In the staging area: which piece, and what is next for it.
  std::int64_t piece = 0;
  int phase = 0;
};

class SharedMemoryCommunicator final : public Communicator {
 public:
  SharedMemoryCommunicator(std::shared_ptr<GroupMemory> group, int rank, std::shared_ptr<Segments> segments = nullptr)
      : Communicator(group->name, rank, group->size),
        group_(std::move(group)),
        mine_(group_->block(rank)),
        segments_(std::move(segments)),
        spins_(usable_cores() >= size() ? 4000 : 0) {
    if (segments_ == nullptr)
      segments_ = std::make_shared<Segments>(OwnSegments(mine_), std::vector<PeerSegments>(group_->numbers.size()));
    mine_.pid.store(getpid());
    for (int r = 0; r < size() && !group_->threads; ++r) watches_.emplace_back(group_->block(r).pid.load());
  }

  ~SharedMemoryCommunicator() override {
    mine_.left.store(true);
    wake_others();
  }

  at::Tensor shared_empty(std::int64_t numel, at::TensorOptions options) override {
    if (!group_->threads && size() > 1 && options.device().is_cpu())
      if (auto tensor = segments_->own.empty(numel, options)) return *tensor;
    return Communicator::shared_empty(numel, options);
  }

  Result<std::unique_ptr<Communicator>> subgroup(const std::string& name, const std::vector<int>& ranks) override;

  void gives_up_for(int number) override { own_outermost_block().blamed.store(number); }

  // Returns when the collective of that number is over.
  Result<void> wait(std::int64_t number) {
    auto over = [&] { return progress_until(number); };
    Result<void> result = wait_until(number, over);
    forget_finished();
    return result;
  }

  // Whether wait() would return at once.
  bool done(std::int64_t number) { return progress_until(number); }

 private:
  Result<WorkPtr> start(Collective collective) override;

  Pending& pending(std::int64_t number) { return pending_[static_cast<std::size_t>(number - first_pending_)]; }
  const Post& post(int rank, std::int64_t number) const {
    return group_->block(rank).posts[static_cast<std::size_t>(number % post_window)];
  }

  bool all(Counter RankBlock::*counter, std::int64_t at_least) const {
    for (int r = 0; r < size(); ++r)
      if ((group_->block(r).*counter).value.load(std::memory_order_acquire) < at_least) return false;
    return true;
  }

  void advance(Counter RankBlock::*counter) {
    std::atomic<std::int64_t>& value = (mine_.*counter).value;
    value.store(value.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    wake_others();
  }

  void wake_others() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (int r = 0; r < size(); ++r)
      if (r != rank() && group_->block(r).asleep.load(std::memory_order_relaxed) != 0) ring(group_->block(r).bell);
  }

  // Does this rank's share of what is under way, in order, as far as it can now. Whether the collective of that number
  // is over.
  bool progress_until(std::int64_t number) {
    while (next_own_ < first_pending_ + static_cast<std::int64_t>(pending_.size()) && !error_) {
      Pending& p = pending(next_own_);
      if (!do_own_share(p) || error_) break;
      ++next_own_;
      advance(&RankBlock::done);
    }
    if (error_ || number < first_pending_) return true;
    return next_own_ > number && (pending(number).path != Path::direct || all(&RankBlock::done, number + 1));
  }

  bool do_own_share(Pending& p);
  bool check_agreement(const Collective& c);
  Path choose_path(const Collective& c);
  void do_payload(const Collective& c);
  void do_direct(const Collective& c);
  bool do_staging(Pending& p);
  std::byte* reach(int rank, Place place);

  template <class F>
  Result<void> wait_until(std::int64_t number, const F& over);
  Error ended_before(std::int64_t number, const std::vector<int>& gone);
  Error too_late(std::int64_t number, const std::vector<int>& absent);
  std::vector<int> causes(const std::vector<int>& ranks, std::atomic<int> RankBlock::*next);
  std::string text_of(const std::vector<int>& numbers) const;
  char state_of(int number) const;
  int number_of(int rank) const { return group_->numbers[static_cast<std::size_t>(rank)]; }
  RankBlock& own_outermost_block() const { return *group_->outermost_block(number_of(rank())); }
  std::vector<int> behind(std::int64_t number) const;
  std::vector<int> ended(const std::vector<int>& ranks) const;

  void forget_finished() {
    while (first_pending_ < next_own_ &&
           (pending_.front().path != Path::direct || all(&RankBlock::done, first_pending_ + 1))) {
      kept(first_pending_) = {};
      pending_.pop_front();
      ++first_pending_;
    }
  }

  Collective& kept(std::int64_t number) {
    return group_->kept[static_cast<std::size_t>(rank())][static_cast<std::size_t>(number % post_window)];
  }

  std::shared_ptr<GroupMemory> group_;
  RankBlock& mine_;
  std::shared_ptr<Segments> segments_;
  std::vector<ProcessWatch> watches_;
  std::deque<Pending> pending_;
  std::int64_t first_pending_ = 0;  // number of pending_.front()
  std::int64_t next_own_ = 0;       // the first whose own share is not done
  std::int64_t staged_pieces_ = 0;  // of all collectives before next_own_
  std::optional<Error> error_;      // after one, nothing works any more
  int spins_;
};

class SharedMemoryWork final : public Work {
 public:
  SharedMemoryWork(SharedMemoryCommunicator& communicator, std::int64_t number)
      : communicator_(communicator), number_(number) {}
  Result<void> wait() override { return communicator_.wait(number_); }
  bool done() override { return communicator_.done(number_); }

 private:
  SharedMemoryCommunicator& communicator_;
  std::int64_t number_;
};

Result<WorkPtr> SharedMemoryCommunicator::start(Collective c) {
  std::int64_t number = c.number;
  bool tensors = c.kind != Collective::Kind::barrier;
  YOKE_CHECK(!tensors || (c.input.is_cpu() && c.output.is_cpu()), "{}: not a CPU tensor", describe(c, group()));
  // The slot is free when nobody needs its last announcement any more.
  if (number >= post_window) {
    auto free = [&] { return progress_until(number - post_window) && all(&RankBlock::done, number - post_window + 1); };
    YOKE_TRY_VOID(wait_until(number - post_window, free));
    forget_finished();
  }
  if (error_) return tl::unexpected(*error_);

  Post& p = mine_.posts[static_cast<std::size_t>(number % post_window)];
  p.kind = c.kind;
  p.op = c.op;
  p.root = c.root;
  p.type = tensors ? c.input.scalar_type() : at::kByte;
  p.input_numel = tensors ? c.input.numel() : 0;
  p.output_numel = tensors ? c.output.numel() : 0;
  p.input = {};
  std::size_t length = std::min(c.name.size(), p.name.size() - 1);
  std::memcpy(p.name.data(), c.name.data(), length);
  p.name[length] = 0;
  if (tensors) {
    std::size_t bytes = c.input.nbytes();
    if (bytes <= payload_bytes) {
      std::memcpy(p.payload.data(), c.input.const_data_ptr(), bytes);
    } else if (group_->threads) {
      p.input = {0, reinterpret_cast<std::uint64_t>(c.input.const_data_ptr())};
    } else {
      p.input = segments_->own.find(c.input);
    }
  }
  if (group_->threads) kept(number) = c;
  pending_.push_back({std::move(c), std::nullopt});
  advance(&RankBlock::posted);
  progress_until(number);
  return std::make_unique<SharedMemoryWork>(*this, number);
}

bool SharedMemoryCommunicator::do_own_share(Pending& p) {
  const Collective& c = p.collective;
  if (!p.path) {
    if (!all(&RankBlock::posted, c.number + 1)) return false;
    if (!check_agreement(c)) return false;
    p.path = choose_path(c);
  }
  switch (*p.path) {
    case Path::payload:
      do_payload(c);
      return true;
    case Path::direct:
      do_direct(c);
      return true;
    case Path::staging:
      return do_staging(p);
  }
  return true;
}

bool SharedMemoryCommunicator::check_agreement(const Collective& c) {
  const Post& mine = post(rank(), c.number);
  for (int r = 0; r < size(); ++r) {
    const Post& theirs = post(r, c.number);
    if (theirs.kind == mine.kind && theirs.op == mine.op && theirs.type == mine.type && theirs.root == mine.root &&
        theirs.input_numel == mine.input_numel && theirs.output_numel == mine.output_numel && theirs.name == mine.name)
      continue;
    auto text = [&](const Post& post) {
      Collective what{.kind = post.kind, .name = post.name.data(), .number = c.number};
      std::string of = post.kind == Collective::Kind::barrier
                           ? ""
                           : fmt::format(" of {} elements ({})", post.input_numel, c10::toString(post.type));
      return describe(what, group()) + of;
    };
    error_.emplace(ErrorKind::failed,
                   fmt::format("ranks disagree: rank {} starts {}, rank {} {}", number_of(r), text(theirs),
                               number_of(rank()), text(mine)),
                   "every rank must start the same collectives in the same order");
    return false;
  }
  return true;
}

Path SharedMemoryCommunicator::choose_path(const Collective& c) {
  if (c.kind == Collective::Kind::barrier || c.input.nbytes() <= payload_bytes) return Path::payload;
  for (int r = 0; r < size(); ++r) {
    if (c.kind == Collective::Kind::broadcast && r != c.root) continue;
    // What the others read, and for an all_reduce write.
    if (post(r, c.number).input.segment < 0) return Path::staging;
  }
  return Path::direct;
}

std::byte* SharedMemoryCommunicator::reach(int rank, Place place) {
  if (group_->threads) return reinterpret_cast<std::byte*>(place.offset);
  int number = number_of(rank);
  std::byte* found = segments_->peers[static_cast<std::size_t>(group_->outermost_rank(number))].find(
      *group_->outermost_block(number), place);
  if (found != nullptr || error_) return found;
  if (!ended({rank}).empty())
    error_ = ended_before(next_own_, {rank});
  else
    error_.emplace(ErrorKind::failed,
                   fmt::format("{} failed: the memory that rank {} shares cannot be mapped",
                               describe(pending(next_own_).collective, group()), number_of(rank)),
                   "is this process out of memory or file descriptors (ulimit -v, ulimit -n)?");
  return found;
}

// All announcements hold their ranks' whole inputs.
void SharedMemoryCommunicator::do_payload(const Collective& c) {
  if (c.kind == Collective::Kind::barrier) return;
  std::size_t bytes = c.input.nbytes(), part = bytes / static_cast<std::size_t>(size());
  std::byte* out = bytes_of(c.output);
  auto payload = [&](int r) { return post(r, c.number).payload.data(); };
  auto reduce_all = [&](std::size_t first, std::int64_t numel) {
    std::vector<const void*> inputs;
    for (int r = 0; r < size(); ++r) inputs.push_back(payload(r) + first);
    void* output = out;
    reduce(c.op, c.input.scalar_type(), {&output, 1}, inputs, numel);
  };
  switch (c.kind) {
    case Collective::Kind::all_reduce:
      reduce_all(0, c.input.numel());
      break;
    case Collective::Kind::reduce_scatter:
      reduce_all(part * static_cast<std::size_t>(rank()), c.output.numel());
      break;
    case Collective::Kind::broadcast:
      if (rank() != c.root) std::memcpy(out, payload(c.root), bytes);
      break;
    case Collective::Kind::all_gather:
      for (int r = 0; r < size(); ++r) std::memcpy(out + static_cast<std::size_t>(r) * bytes, payload(r), bytes);
      break;
    case Collective::Kind::all_to_all:
      for (int r = 0; r < size(); ++r)
        std::memcpy(out + static_cast<std::size_t>(r) * part, payload(r) + part * static_cast<std::size_t>(rank()),
                    part);
      break;
    case Collective::Kind::barrier:
      break;
  }
}

void SharedMemoryCommunicator::do_direct(const Collective& c) {
  auto n = static_cast<std::size_t>(size()), me = static_cast<std::size_t>(rank());
  std::size_t bytes = c.input.nbytes(), part = bytes / n, element = c.input.element_size();
  std::byte* out = bytes_of(c.output);
  std::vector<std::byte*> inputs(n);
  for (int r = 0; r < size(); ++r) {
    if (c.kind == Collective::Kind::broadcast && r != c.root) continue;
    auto& input = inputs[static_cast<std::size_t>(r)];
    input = r == rank() ? bytes_of(c.input) : reach(r, post(r, c.number).input);
    if (input == nullptr) return;
  }
  switch (c.kind) {
    case Collective::Kind::all_reduce: {
      // The n-th part of the elements that is this rank's, written to everybody.
      std::int64_t each = (c.input.numel() + size() - 1) / size();
      std::int64_t first = std::min(c.input.numel(), each * rank()), last = std::min(c.input.numel(), first + each);
      std::vector<void*> outputs(n);
      std::vector<const void*> sources(n);
      for (std::size_t r = 0; r < n; ++r)
        outputs[r] = inputs[r] + static_cast<std::size_t>(first) * element, sources[r] = outputs[r];
      if (last > first) reduce(c.op, c.input.scalar_type(), outputs, sources, last - first);
      break;
    }
    case Collective::Kind::reduce_scatter: {
      std::vector<const void*> sources(n);
      for (std::size_t r = 0; r < n; ++r) sources[r] = inputs[r] + me * part;
      void* output = out;
      reduce(c.op, c.input.scalar_type(), {&output, 1}, sources, c.output.numel());
      break;
    }
    case Collective::Kind::broadcast:
      if (rank() != c.root) copy_bytes(out, inputs[static_cast<std::size_t>(c.root)], bytes);
      break;
    case Collective::Kind::all_gather:
      for (std::size_t i = 1; i <= n; ++i) {
        std::size_t r = (me + i) % n;  // not all at the same rank's memory at once
        if (out + r * bytes != inputs[r]) copy_bytes(out + r * bytes, inputs[r], bytes);
      }
      break;
    case Collective::Kind::all_to_all:
      for (std::size_t i = 1; i <= n; ++i) {
        std::size_t r = (me + i) % n;
        copy_bytes(out + r * part, inputs[r] + me * part, part);
      }
      break;
    case Collective::Kind::barrier:
      break;
  }
}

// One piece after the other: written to this rank's staging area, combined there or read from the others' by each rank.
// The halves of the area alternate, so that a rank may write the next piece while others still read the last.
bool SharedMemoryCommunicator::do_staging(Pending& p) {
  const Collective& c = p.collective;
  auto n = static_cast<std::int64_t>(size()), me = static_cast<std::int64_t>(rank());
  auto element = static_cast<std::int64_t>(c.input.element_size());
  std::int64_t half = staging_bytes / 2;
  bool parts = c.kind == Collective::Kind::all_reduce || c.kind == Collective::Kind::reduce_scatter ||
               c.kind == Collective::Kind::all_to_all;
  // Elements of one rank's part of the tensor, and of a piece of it. Without parts the whole tensor is one.
  std::int64_t part = parts ? (c.input.numel() + n - 1) / n : c.input.numel();
  std::int64_t most = std::max<std::int64_t>(1, half / element / (parts ? n : 1) / 64 * 64);
  std::int64_t pieces = (part + most - 1) / most;
  std::byte *in = bytes_of(c.input), *out = bytes_of(c.output);
  bool all_reduce = c.kind == Collective::Kind::all_reduce;

  for (; p.piece < pieces; ++p.piece, p.phase = 0) {
    std::int64_t ticket = staged_pieces_ + p.piece;
    std::int64_t first = p.piece * most;
    // Elements of rank r's part in this piece; the last rank's part of an all_reduce may be shorter.
    auto count = [&](std::int64_t r) {
      std::int64_t end = parts ? std::min(part, std::max<std::int64_t>(0, c.input.numel() - r * part)) : part;
      return std::clamp<std::int64_t>(end - first, 0, most);
    };
    auto area = [&](std::int64_t r) { return group_->block(static_cast<int>(r)).staging.data() + (ticket % 2) * half; };
    if (p.phase == 0) {
      if (!all(&RankBlock::taken, ticket - 1)) return false;
      if (parts) {
        for (std::int64_t r = 0; r < n; ++r)
          if (r != me)
            std::memcpy(area(me) + r * most * element, in + (r * part + first) * element, count(r) * element);
      } else if (c.kind != Collective::Kind::broadcast || me == c.root) {
        std::memcpy(area(me), in + first * element, count(0) * element);
      }
      advance(&RankBlock::staged);
      p.phase = 1;
    }
    if (p.phase == 1) {
      if (!all(&RankBlock::staged, ticket + 1)) return false;
      switch (c.kind) {
        case Collective::Kind::all_reduce:
        case Collective::Kind::reduce_scatter: {
          std::vector<const void*> sources;
          for (std::int64_t r = 0; r < n; ++r)
            sources.push_back(r == me ? in + (me * part + first) * element : area(r) + me * most * element);
          std::array<void*, 2> outputs{out + ((all_reduce ? me * part : 0) + first) * element,
                                       area(me) + me * most * element};
          if (count(me) > 0)
            reduce(c.op, c.input.scalar_type(), {outputs.data(), all_reduce ? 2U : 1U}, sources, count(me));
          break;
        }
        case Collective::Kind::broadcast:
          if (me != c.root) std::memcpy(out + first * element, area(c.root), count(0) * element);
          break;
        case Collective::Kind::all_gather:
          for (std::int64_t r = 0; r < n; ++r) {
            std::byte* to = out + (r * part + first) * element;
            std::byte* from = r == me ? in + first * element : area(r);
            if (to != from) std::memcpy(to, from, count(0) * element);
          }
          break;
        case Collective::Kind::all_to_all:
          for (std::int64_t r = 0; r < n; ++r)
            std::memcpy(out + (r * part + first) * element,
                        r == me ? in + (me * part + first) * element : area(r) + me * most * element,
                        count(me) * element);
          break;
        case Collective::Kind::barrier:
          break;
      }
      advance(&RankBlock::reduced);
      p.phase = 2;
    }
    if (all_reduce) {
      if (!all(&RankBlock::reduced, ticket + 1)) return false;
      for (std::int64_t r = 0; r < n; ++r)
        if (r != me) std::memcpy(out + (r * part + first) * element, area(r) + r * most * element, count(r) * element);
    }
    advance(&RankBlock::taken);
  }
  staged_pieces_ += pieces;
  return true;
}

// Ranks that have not done what the collective needs of them.
std::vector<int> SharedMemoryCommunicator::behind(std::int64_t number) const {
  std::vector<int> ranks;
  auto value = [&](int r, Counter RankBlock::*counter) { return (group_->block(r).*counter).value.load(); };
  for (Counter RankBlock::*counter : {&RankBlock::posted, &RankBlock::done}) {
    for (int r = 0; r < size(); ++r)
      if (r != rank() && value(r, counter) <= number) ranks.push_back(r);
    if (!ranks.empty()) break;
  }
  // In the staging area all wait for the one that is least far.
  auto pieces = [&](int r) {
    return value(r, &RankBlock::staged) + value(r, &RankBlock::reduced) + value(r, &RankBlock::taken);
  };
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (int r : ranks) least = std::min(least, pieces(r));
  std::erase_if(ranks, [&](int r) { return value(r, &RankBlock::posted) > number && pieces(r) > least; });
  return ranks;
}

std::vector<int> SharedMemoryCommunicator::ended(const std::vector<int>& ranks) const {
  std::vector<int> result;
  for (int r : ranks)
    if (group_->block(r).left.load() || (!group_->threads && watches_[static_cast<std::size_t>(r)].ended()))
      result.push_back(r);
  return result;
}

// The ranks that these wait for (or gave up for), and so on, as numbers of the outermost group. The first of them is
// this rank's own reason to give up.
std::vector<int> SharedMemoryCommunicator::causes(const std::vector<int>& ranks, std::atomic<int> RankBlock::*next) {
  std::vector<int> found;
  for (int r : ranks) {
    int number = number_of(r);
    for (std::size_t i = 0; i < post_window; ++i) {  // a circle of ranks that wait for each other has no end
      RankBlock* block = group_->outermost_block(number);
      int following = block == nullptr ? -1 : (block->*next).load();
      if (following < 0 || following == number_of(rank())) break;
      number = following;
    }
    if (std::find(found.begin(), found.end(), number) == found.end()) found.push_back(number);
  }
  std::sort(found.begin(), found.end());
  if (!found.empty()) gives_up_for(found.front());
  return found;
}

// "1 (stopped by a signal), 3"
std::string SharedMemoryCommunicator::text_of(const std::vector<int>& numbers) const {
  std::vector<std::string> texts;
  for (int n : numbers) {
    char state = group_->threads ? '?' : state_of(n);
    texts.push_back(std::to_string(n) + (state == 'T' || state == 't' ? " (stopped by a signal)" : ""));
  }
  return join(texts, ", ");
}

// As /proc has it; Z when the process is gone, ? when it is on another host.
char SharedMemoryCommunicator::state_of(int number) const {
  RankBlock* block = group_->outermost_block(number);
  if (block == nullptr) return '?';
  auto info = process_info(block->pid.load());
  return info ? info->state : 'Z';
}

Error SharedMemoryCommunicator::ended_before(std::int64_t number, const std::vector<int>& gone) {
  std::string what = describe(pending(number).collective, group());
  std::vector<int> found = causes(gone, &RankBlock::blamed), dead;
  for (int n : found)
    if (group_->threads ? group_->outermost_block(n)->left.load() : state_of(n) == 'Z') dead.push_back(n);
  if (dead.empty())
    return {ErrorKind::failed,
            fmt::format("{} failed: another rank gave up waiting: absent ranks: {}", what, text_of(found)),
            "those ranks are slow or stuck"};
  return {ErrorKind::failed, fmt::format("{} failed: rank {} ended before it", what, text_of(dead)),
          "see the first error of that rank"};
}

Error SharedMemoryCommunicator::too_late(std::int64_t number, const std::vector<int>& absent) {
  std::string ranks = text_of(causes(absent, &RankBlock::waits_for));
  bool stopped = ranks.find("stopped") != std::string::npos;
  return {ErrorKind::timeout,
          fmt::format("{} did not finish within {}: absent ranks: {}", describe(pending(number).collective, group()),
                      format_seconds(group_->timeout.value), ranks),
          stopped ? "SIGSTOP, a terminal or a debugger stopped that rank: kill -CONT lets it go on, within "
                    "train.collective_timeout"
                  : "those ranks are slow, stuck or took another path; raise train.collective_timeout if they are "
                    "slow"};
}

template <class F>
Result<void> SharedMemoryCommunicator::wait_until(std::int64_t number, const F& over) {
  constexpr double look_again = 0.05;  // seconds between looks at whether the others live
  auto settled = [&] { return over() || error_.has_value(); };
  for (int i = 0; i < spins_ && !settled(); ++i) pause();
  for (int i = 0; i < 4 && !settled(); ++i) sched_yield();
  std::int64_t deadline = monotonic_ns() + static_cast<std::int64_t>(group_->timeout.value * 1e9);
  while (!settled()) {
    mine_.asleep.store(1);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    std::uint32_t seen = mine_.bell.load();
    bool slept = false;
    if (!settled()) {
      wait_at_bell(mine_.bell, seen, look_again);
      slept = mine_.bell.load() == seen;
    }
    mine_.asleep.store(0);
    if (!slept || settled()) continue;
    // Nothing has moved for a while.
    std::vector<int> missing = behind(number);
    if (missing.empty()) continue;
    own_outermost_block().waits_for.store(number_of(missing.front()));
    // What a rank did before it ended counts, so those that have ended are looked at once more.
    std::vector<int> gone = ended(missing);
    if (!gone.empty()) missing = behind(number);
    std::erase_if(gone, [&](int r) { return std::find(missing.begin(), missing.end(), r) == missing.end(); });
    if (settled()) continue;
    if (!gone.empty())
      error_ = ended_before(number, gone);
    else if (monotonic_ns() > deadline && !missing.empty())
      error_ = too_late(number, missing);
  }
  if (error_) return tl::unexpected(*error_);
  own_outermost_block().waits_for.store(-1);
  return {};
}

// A number that lets the members of a subgroup find its memory: between threads an address, between processes a file
// descriptor of its first rank.
Result<std::unique_ptr<Communicator>> SharedMemoryCommunicator::subgroup(const std::string& name,
                                                                         const std::vector<int>& ranks) {
  auto me = std::find(ranks.begin(), ranks.end(), rank());
  YOKE_CHECK(me != ranks.end() && std::is_sorted(ranks.begin(), ranks.end()), "group {}: rank {} is not in it", name,
             rank());
  int number = static_cast<int>(me - ranks.begin());
  std::vector<int> numbers;
  for (int r : ranks) numbers.push_back(number_of(r));
  std::shared_ptr<GroupMemory> made;
  std::int64_t handle = -1;
  if (number == 0) {
    YOKE_TRY(made, new_group(name, numbers, group_->timeout, group_->threads));
    made->block(0).pid.store(getpid());
    made->outermost = group_->outermost != nullptr ? group_->outermost : group_;
    handle = group_->threads ? reinterpret_cast<std::int64_t>(&made) : made->mapping.fd();
  }
  at::Tensor mine = at::full({1}, handle, at::kLong), handles = at::empty({size()}, at::kLong);
  YOKE_TRY(WorkPtr gathered, all_gather("group " + name, handles, mine));
  YOKE_TRY_VOID(gathered->wait());
  handle = handles[ranks[0]].item<std::int64_t>();
  if (number != 0 && group_->threads) {
    made = *reinterpret_cast<std::shared_ptr<GroupMemory>*>(handle);
  } else if (number != 0) {
    pid_t owner = group_->block(ranks[0]).pid.load();
    made = join_group(name, numbers, group_->timeout, number, owner, static_cast<int>(handle));
    if (made != nullptr) made->outermost = group_->outermost != nullptr ? group_->outermost : group_;
  }
  // Also keeps the first rank's handle in place until all have used it, and all pids known.
  YOKE_TRY_VOID(barrier("group " + name));
  if (made == nullptr)
    return fail(ErrorKind::failed, fmt::format("rank {} cannot join the group {}", number_of(rank()), name));
  return std::make_unique<SharedMemoryCommunicator>(std::move(made), number, segments_);
}

}  // namespace

std::vector<std::unique_ptr<Communicator>> thread_group(const std::string& name, int size, Seconds timeout) {
  std::vector<int> numbers(static_cast<std::size_t>(size));
  std::iota(numbers.begin(), numbers.end(), 0);
  auto group = new_group(name, std::move(numbers), timeout, true);
  if (!group) throw std::bad_alloc();
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int r = 0; r < size; ++r) communicators.push_back(std::make_unique<SharedMemoryCommunicator>(*group, r));
  return communicators;
}

Result<std::unique_ptr<Communicator>> process_group(const std::string& name, int rank, const std::vector<int>& numbers,
                                                    Seconds timeout, const Exchange& exchange) {
  std::shared_ptr<GroupMemory> group;
  std::string address;
  if (rank == 0) {
    if (auto made = new_group(name, numbers, timeout, false)) {
      group = *made;
      group->block(0).pid.store(getpid());
      address = fmt::format("{} {}", getpid(), group->mapping.fd());
    }
  }
  YOKE_TRY(std::vector<std::string> addresses, exchange(address));
  if (rank != 0) {
    std::vector<std::string> words = split(addresses[0], ' ');
    auto pid = words.size() == 2 ? parse_integer(words[0]) : std::nullopt,
         fd = words.size() == 2 ? parse_integer(words[1]) : std::nullopt;
    if (pid && fd) group = join_group(name, numbers, timeout, rank, static_cast<pid_t>(*pid), static_cast<int>(*fd));
  }
  YOKE_TRY(std::vector<std::string> joined, exchange(group != nullptr ? "joined" : "cannot"));
  for (const std::string& answer : joined)
    if (answer != "joined") return nullptr;
  return std::make_unique<SharedMemoryCommunicator>(std::move(group), rank);
}

}  // namespace yoke
