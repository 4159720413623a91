#include "train/comm/hosts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <deque>
#include <numeric>
#include <optional>

#include "core/base/text.h"

namespace yoke {
namespace {

// Collectives of one of the groups that a communicator is made of, and what is to be done when they have ended.
struct Step {
  std::vector<Collective> collectives;
  std::function<void()> then;
  std::vector<WorkPtr> works = {};
};

// A collective that this rank has started. Its steps begin in the same order as those of the collectives around it:
// each of the groups that it is made of must see the same order on all ranks.
struct Pending {
  Collective collective;
  std::array<Step, 3> steps;  // on this host, over the network, on this host
  int begun = 0;              // steps
};

// The groups' sizes and this rank's place.
struct Grid {
  std::int64_t hosts = 1, locals = 1;  // ranks of each host that take part in the steps there
  std::int64_t host = 0, local = 0;
};

Collective like(const Collective& c, Collective::Kind kind, at::Tensor output, at::Tensor input) {
  Collective part = c;
  part.kind = kind;
  part.output = std::move(output);
  part.input = std::move(input);
  return part;
}

// The tensor, flat, if it has a multiple of that many elements, else a zero-padded copy.
at::Tensor padded(const at::Tensor& tensor, std::int64_t multiple) {
  at::Tensor flat = tensor.view({-1});
  std::int64_t rest = flat.numel() % multiple;
  return rest == 0 ? flat : at::constant_pad_nd(flat, {0, multiple - rest});
}

// The result in a padded copy goes back to the tensor.
std::function<void()> unpad(const at::Tensor& tensor, const at::Tensor& copy) {
  return [tensor, copy] {
    if (copy.const_data_ptr() != tensor.const_data_ptr()) tensor.view({-1}).copy_(copy.narrow(0, 0, tensor.numel()));
  };
}

std::array<Step, 3> steps_of(const Collective& c, const Grid& grid) {
  using Kind = Collective::Kind;
  std::array<Step, 3> steps;
  auto& [first, network, last] = steps;
  if (grid.locals == 1) {
    network.collectives = {c};
    return steps;
  }
  switch (c.kind) {
    case Kind::all_reduce: {
      at::Tensor whole = padded(c.input, grid.locals);
      at::Tensor piece = whole.chunk(grid.locals)[static_cast<std::size_t>(grid.local)];
      first.collectives = {like(c, Kind::reduce_scatter, piece, whole)};
      network.collectives = {like(c, Kind::all_reduce, piece, piece)};
      last.collectives = {like(c, Kind::all_gather, whole, piece)};
      last.then = unpad(c.output, whole);
      break;
    }
    case Kind::reduce_scatter: {
      // For each host its part, of which each rank here sums one piece.
      at::Tensor sums = at::empty({grid.hosts, c.output.numel()}, c.output.options());
      at::Tensor parts = c.input.view({grid.hosts, -1});
      for (std::int64_t h = 0; h < grid.hosts; ++h)
        first.collectives.push_back(like(c, Kind::reduce_scatter, sums[h], parts[h]));
      network.collectives = {like(c, Kind::reduce_scatter, c.output.view({-1}), sums.view({-1}))};
      break;
    }
    case Kind::all_gather: {
      at::Tensor pieces = at::empty({grid.hosts, c.input.numel()}, c.input.options());
      network.collectives = {like(c, Kind::all_gather, pieces.view({-1}), c.input.view({-1}))};
      // Where they belong, so that ranks which can reach the output read them there.
      at::Tensor places = c.output.view({grid.hosts, grid.locals, -1}).select(1, grid.local);
      network.then = [places, pieces] { places.copy_(pieces); };
      at::Tensor parts = c.output.view({grid.hosts, -1});
      for (std::int64_t h = 0; h < grid.hosts; ++h)
        last.collectives.push_back(like(c, Kind::all_gather, parts[h], places[h]));
      break;
    }
    case Kind::broadcast: {
      // The ranks of the root's host send a piece each.
      bool at_root = c.root / grid.locals == grid.host;
      std::int64_t numel = c.input.numel(), part = (numel + grid.locals - 1) / grid.locals;
      at::Tensor whole = padded(c.input, grid.locals);
      at::Tensor piece = whole.narrow(0, grid.local * part, part);
      if (at_root) {
        first.collectives = {like(c, Kind::broadcast, c.output, c.input)};
        first.collectives[0].root = static_cast<int>(c.root % grid.locals);
        first.then = [tensor = c.input, whole, numel] {
          if (whole.const_data_ptr() != tensor.const_data_ptr()) whole.narrow(0, 0, numel).copy_(tensor.view({-1}));
        };
      }
      network.collectives = {like(c, Kind::broadcast, piece, piece)};
      network.collectives[0].root = static_cast<int>(c.root / grid.locals);
      if (!at_root) {
        last.collectives = {like(c, Kind::all_gather, whole, piece)};
        last.then = unpad(c.output, whole);
      }
      break;
    }
    case Kind::all_to_all: {
      // What comes from another host's rank with this place there is for all ranks here.
      at::Tensor arrived = at::empty({grid.hosts, c.input.numel() / grid.hosts}, c.input.options());
      network.collectives = {like(c, Kind::all_to_all, arrived.view({-1}), c.input.view({-1}))};
      at::Tensor parts = c.output.view({grid.hosts, -1});
      for (std::int64_t h = 0; h < grid.hosts; ++h)
        last.collectives.push_back(like(c, Kind::all_to_all, parts[h], arrived[h]));
      break;
    }
    case Kind::barrier:
      first.collectives = {c};
      network.collectives = {c};
      break;
  }
  return steps;
}

class HostsCommunicator final : public Communicator {
 public:
  HostsCommunicator(const std::string& name, int rank, std::vector<int> ranks,
                    std::array<std::unique_ptr<Communicator>, 3> groups, Grid grid,
                    std::shared_ptr<const HostsWorld> world)
      : Communicator(name, rank, static_cast<int>(ranks.size())),
        ranks_(std::move(ranks)),
        world_(std::move(world)),
        groups_(std::move(groups)),
        grid_(grid) {}

  at::Tensor shared_empty(std::int64_t numel, at::TensorOptions options) override {
    return groups_[0] != nullptr ? groups_[0]->shared_empty(numel, options)
                                 : Communicator::shared_empty(numel, options);
  }

  Result<std::unique_ptr<Communicator>> subgroup(const std::string& name, const std::vector<int>& ranks) override {
    auto me = std::find(ranks.begin(), ranks.end(), rank());
    YOKE_CHECK(me != ranks.end() && std::is_sorted(ranks.begin(), ranks.end()), "group {}: rank {} is not in it", name,
               rank());
    std::vector<int> members, here;  // here: by their numbers in the group of this host
    int locals = 0;
    for (int r = 0; r < size(); ++r) {
      bool member = std::binary_search(ranks.begin(), ranks.end(), r);
      if (member) members.push_back(number_of(r));
      if (host_of(r) != host_of(rank())) continue;
      if (member) here.push_back(locals);
      ++locals;
    }
    std::unique_ptr<Communicator> local;
    if (groups_[0] != nullptr) {
      YOKE_TRY(local, groups_[0]->subgroup(name, here));
      if (here.size() == members.size()) return local;
    }
    try {
      return hosts_group(name, static_cast<int>(me - ranks.begin()), std::move(members), std::move(local),
                         fmt::format("{}/{}.{}", name, number_of(ranks.front()), subgroups_++), world_);
    } catch (const std::exception& e) {
      return fail(ErrorKind::failed,
                  fmt::format("rank {} cannot join the group {}: {}", number_of(rank()), name, e.what()),
                  "are all ranks running?");
    }
  }

  Result<void> wait(std::int64_t number) {
    progress();
    while (!error_ && number >= first_pending_) {
      // The oldest first, as all ranks do, so that nobody waits for one who waits for something else.
      Pending& oldest = pending_.front();
      world_->board->waits_for(place_of(oldest.collective));
      for (WorkPtr& work : oldest.steps[static_cast<std::size_t>(oldest.begun - 1)].works)
        if (auto result = work->wait(); !result) return give_up(oldest.collective, result.error());
      world_->board->waits_for(std::nullopt);
      progress();
    }
    if (number < first_pending_) return {};
    return tl::unexpected(*error_);
  }

  bool done(std::int64_t number) {
    progress();
    return error_ || number < first_pending_;
  }

 private:
  Result<WorkPtr> start(Collective c) override;

  int number_of(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  ProgressBoard::Place place_of(const Collective& c) const { return {group(), ranks_, c.number}; }
  int host_of(int rank) const { return world_->hosts[static_cast<std::size_t>(number_of(rank))]; }

  // Begins all steps that can begin now.
  void progress() {
    int most = 4;  // steps that the collective before has begun
    for (Pending& p : pending_) {
      while (!error_ && p.begun < most && ended(p)) begin_next(p);
      if (error_) return;
      most = p.begun;
    }
    while (!pending_.empty() && pending_.front().begun == 4) {
      pending_.pop_front();
      ++first_pending_;
    }
  }

  // Whether its last begun step is over.
  static bool ended(Pending& p) {
    if (p.begun == 0) return true;
    std::vector<WorkPtr>& works = p.steps[static_cast<std::size_t>(p.begun - 1)].works;
    return std::all_of(works.begin(), works.end(), [](WorkPtr& work) { return work->done(); });
  }

  // Step 4 is the end.
  void begin_next(Pending& p) {
    if (p.begun > 0) {
      Step& over = p.steps[static_cast<std::size_t>(p.begun - 1)];
      for (WorkPtr& work : over.works)
        if (auto result = work->wait(); !result) return void(give_up(p.collective, result.error()));
      if (over.then) over.then();
      over = {};
    }
    std::size_t next = static_cast<std::size_t>(p.begun++);
    if (next == p.steps.size()) return;
    for (Collective& c : p.steps[next].collectives) {
      auto work = start_on(*groups_[next], c);
      if (!work) return void(give_up(p.collective, work.error()));
      p.steps[next].works.push_back(*std::move(work));
    }
  }

  tl::unexpected<Error> give_up(const Collective& c, const Error& cause);

  std::vector<int> ranks_;                               // in the world
  std::shared_ptr<const HostsWorld> world_;              // outlives the groups, whose end others notice
  std::array<std::unique_ptr<Communicator>, 3> groups_;  // by step; those on this host may be missing
  Grid grid_;
  std::deque<Pending> pending_;
  std::int64_t first_pending_ = 0;  // number of pending_.front()
  std::optional<Error> error_;      // after one, nothing works any more
  int subgroups_ = 0;
};

class HostsWork final : public Work {
 public:
  HostsWork(HostsCommunicator& communicator, std::int64_t number) : communicator_(communicator), number_(number) {}
  Result<void> wait() override { return communicator_.wait(number_); }
  bool done() override { return communicator_.done(number_); }

 private:
  HostsCommunicator& communicator_;
  std::int64_t number_;
};

Result<WorkPtr> HostsCommunicator::start(Collective c) {
  std::int64_t number = c.number;
  world_->board->started(group(), number);
  // The groups in shared memory have room for some collectives only.
  std::int64_t most = std::max<std::int64_t>(1, 32 / grid_.hosts);
  if (number - first_pending_ >= most) YOKE_TRY_VOID(wait(number - most));
  if (error_) return tl::unexpected(*error_);
  Pending p{c, steps_of(c, grid_)};
  pending_.push_back(std::move(p));
  progress();
  if (error_) return tl::unexpected(*error_);
  return std::make_unique<HostsWork>(*this, number);
}

tl::unexpected<Error> HostsCommunicator::give_up(const Collective& c, const Error& cause) {
  auto [absent, text] = world_->board->absent(place_of(c));
  for (auto& part : groups_)
    if (part != nullptr) part->gives_up_for(absent.empty() ? -1 : absent[0]);
  std::string what = describe(c, group());
  if (cause.kind == ErrorKind::timeout && !absent.empty())
    error_.emplace(ErrorKind::timeout,
                   fmt::format("{} did not finish within {}: {}", what, format_seconds(world_->timeout.value), text),
                   "those ranks are slow, stuck or took another path; raise train.collective_timeout if they are slow");
  else
    error_.emplace(cause.kind, fmt::format("{} failed: {}; {}", what, cause.what, text),
                   "a peer has ended; see the first error of the absent ranks");
  return tl::unexpected(*error_);
}

// Whether every host has as many of these ranks, one host's after the other's.
std::optional<Grid> grid_of(const std::vector<int>& hosts, int rank) {
  auto size = static_cast<std::int64_t>(hosts.size());
  std::int64_t locals = std::count(hosts.begin(), hosts.end(), hosts[0]);
  if (locals == 1 || size % locals != 0) return std::nullopt;
  for (std::int64_t r = 0; r < size; ++r)
    if (std::count(hosts.begin(), hosts.end(), hosts[static_cast<std::size_t>(r)]) != locals ||
        hosts[static_cast<std::size_t>(r)] != hosts[static_cast<std::size_t>(r / locals * locals)])
      return std::nullopt;
  return Grid{size / locals, locals, rank / locals, rank % locals};
}

}  // namespace

Result<std::unique_ptr<Communicator>> hosts_group(const std::string& name, int rank, std::vector<int> ranks,
                                                  std::unique_ptr<Communicator> local, const std::string& key,
                                                  std::shared_ptr<const HostsWorld> world) {
  std::vector<int> hosts;
  for (int r : ranks) hosts.push_back(world->hosts[static_cast<std::size_t>(r)]);
  std::optional<Grid> grid = local != nullptr ? grid_of(hosts, rank) : std::nullopt;
  std::array<std::unique_ptr<Communicator>, 3> groups;
  if (grid) {
    std::vector<int> all(static_cast<std::size_t>(grid->locals));
    std::iota(all.begin(), all.end(), 0);
    YOKE_TRY(groups[2], local->subgroup(name, all));
    YOKE_TRY(groups[1], world->network(fmt::format("{}/{}", key, grid->local), name, static_cast<int>(grid->host),
                                       static_cast<int>(grid->hosts)));
  } else {
    YOKE_TRY(groups[1], world->network(key, name, rank, static_cast<int>(ranks.size())));
  }
  groups[0] = std::move(local);
  return std::make_unique<HostsCommunicator>(name, rank, std::move(ranks), std::move(groups), grid.value_or(Grid{}),
                                             std::move(world));
}

}  // namespace yoke
