#include "train/comm/progress_board.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <thread>

#include "core/base/text.h"

namespace yoke {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds interval(500);      // between two signs of life
constexpr milliseconds look_again(100);    // at the others, after a failure
constexpr milliseconds silence(2500);      // after which a rank counts as dead or stopped
constexpr milliseconds store_limit(5000);  // for the store to answer all that

using Place = ProgressBoard::Place;

// What a rank says: "BEAT BLAMED LEFT", then a line "NUMBER GROUP" for each group, and for what it waits for one with
// "wait NUMBER MEMBER,MEMBER,... GROUP".
struct Record {
  std::int64_t beat = 0;     // grows while the rank lives
  std::int64_t blamed = -1;  // the rank that it gave up for
  bool left = false;         // dropped its communicator
  std::map<std::string, std::int64_t> started;
  std::optional<Place> waits;
};

std::string to_text(const Record& record) {
  std::string text = fmt::format("{} {} {}", record.beat, record.blamed, record.left ? 1 : 0);
  for (const auto& [group, number] : record.started) text += fmt::format("\n{} {}", number, group);
  if (record.waits) {
    std::vector<std::string> members;
    for (int member : record.waits->members) members.push_back(std::to_string(member));
    text += fmt::format("\nwait {} {} {}", record.waits->number, join(members, ","), record.waits->group);
  }
  return text;
}

// The text up to the next space, which is cut off.
std::string next_word(std::string_view& text) {
  std::string_view word = text.substr(0, text.find(' '));
  text.remove_prefix(std::min(text.size(), word.size() + 1));
  return std::string(word);
}

std::int64_t next_number(std::string_view& text) { return parse_integer(next_word(text)).value_or(-1); }

Record from_text(const std::string& text) {
  Record record;
  std::vector<std::string> lines = split(text, '\n');
  std::string_view head = lines[0];
  record.beat = next_number(head);
  record.blamed = next_number(head);
  record.left = next_number(head) == 1;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    std::string_view line = lines[i];
    if (line.starts_with("wait ")) {
      next_word(line);
      Place place{.number = next_number(line)};
      for (const std::string& member : split(next_word(line), ','))
        place.members.push_back(static_cast<int>(parse_integer(member).value_or(0)));
      place.group = line;
      record.waits = place;
    } else {
      std::int64_t number = next_number(line);
      record.started[std::string(line)] = number;
    }
  }
  return record;
}

}  // namespace

struct ProgressBoard::State {
  c10::intrusive_ptr<c10d::Store> store;
  int rank, size;
  bool hosts_store;
  std::mutex mutex;
  std::condition_variable changed;
  Record mine;
  std::optional<Place> question;
  std::optional<Absent> answer;
  bool stop = false, ended = false;

  static std::string key(int rank) { return "progress/" + std::to_string(rank); }

  void publish() {
    std::string text;
    {
      std::lock_guard lock(mutex);
      ++mine.beat;
      text = to_text(mine);
    }
    store->set(key(rank), text);
  }

  std::vector<Record> read_all() {
    std::vector<Record> records(static_cast<std::size_t>(size));
    for (int r = 0; r < size; ++r)
      if (r != rank && store->check({key(r)}))
        records[static_cast<std::size_t>(r)] = from_text(store->get_to_str(key(r)));
    return records;
  }

  // The end of a chain of ranks that gave up for each other; -1 when nobody blames another than this rank.
  std::int64_t end_of_blame(const std::vector<Record>& records, std::int64_t from) const {
    for (int i = 0; i < size; ++i) {
      std::int64_t next = from == rank ? -1 : records[static_cast<std::size_t>(from)].blamed;
      if (next < 0 || next >= size || next == rank) return i == 0 ? -1 : from;
      from = next;
    }
    return from;
  }

  // Those that have not started it, or whom these wait for elsewhere.
  void find_late(const std::vector<Record>& records, const Place& place, std::set<int>& seen,
                 std::set<int>& late) const {
    for (int member : place.members) {
      const Record& record = records[static_cast<std::size_t>(member)];
      auto found = record.started.find(place.group);
      if (member == rank || (found != record.started.end() && found->second >= place.number)) continue;
      if (!seen.insert(member).second) continue;
      std::size_t before = late.size();
      if (record.waits) find_late(records, *record.waits, seen, late);
      if (late.size() == before) late.insert(member);
    }
  }

  Absent look(const Place& place) {
    std::set<int> culprits, silent;
    std::vector<Record> before = read_all(), now = before;
    auto quiet = [&](int r) {
      const Record& record = now[static_cast<std::size_t>(r)];
      return r != rank && !record.left && record.blamed < 0 && record.beat == before[static_cast<std::size_t>(r)].beat;
    };
    auto deadline = std::chrono::steady_clock::now() + silence;
    for (;;) {
      for (int member : place.members)
        if (std::int64_t end = end_of_blame(now, member); end >= 0) culprits.insert(static_cast<int>(end));
      silent.clear();
      for (int r = 0; r < size; ++r)
        if (quiet(r)) silent.insert(r);
      if (!culprits.empty()) silent.clear();  // not known yet
      if (silent.empty() || std::chrono::steady_clock::now() > deadline) break;
      std::this_thread::sleep_for(look_again);
      publish();  // others may be looking at this rank
      now = read_all();
    }
    if (culprits.empty()) culprits = silent;
    if (culprits.empty()) {
      std::set<int> seen;
      find_late(now, place, seen, culprits);
    }
    std::vector<std::string> texts;
    for (int r : culprits) texts.push_back(std::to_string(r) + (silent.contains(r) ? " (no longer answers)" : ""));
    return {{culprits.begin(), culprits.end()},
            texts.empty() ? "all ranks had started it" : "absent ranks: " + join(texts, ", ")};
  }

  void run() {
    std::unique_lock lock(mutex);
    try {
      while (!stop) {
        changed.wait_for(lock, interval, [this] { return stop || question; });
        std::optional<Place> asked = question;
        lock.unlock();
        publish();
        std::optional<Absent> found;
        if (asked) found = look(*asked);
        lock.lock();
        if (!found) continue;
        if (!found->ranks.empty()) mine.blamed = found->ranks[0];
        lock.unlock();
        publish();
        lock.lock();
        answer = found;
        question.reset();
        changed.notify_all();
      }
      mine.left = true;
      bool linger = hosts_store && mine.blamed >= 0;
      lock.unlock();
      publish();
      auto settled = [](const Record& r) { return r.left || r.blamed >= 0; };
      auto deadline = std::chrono::steady_clock::now() + silence + interval;
      while (linger && std::chrono::steady_clock::now() < deadline) {
        std::vector<Record> all = read_all();
        all[static_cast<std::size_t>(rank)].left = true;
        if (std::all_of(all.begin(), all.end(), settled)) break;
        std::this_thread::sleep_for(look_again);
      }
      lock.lock();
    } catch (const std::exception&) {
      if (!lock.owns_lock()) lock.lock();
    }
    store.reset();  // ends with its owner, not with this thread
    ended = true;
    changed.notify_all();
  }
};

ProgressBoard::ProgressBoard(c10::intrusive_ptr<c10d::Store> store, int rank, int size, bool hosts_store)
    : state_(std::make_shared<State>()) {
  state_->store = std::move(store);
  state_->rank = rank, state_->size = size, state_->hosts_store = hosts_store;
  state_->publish();
  std::thread([state = state_] { state->run(); }).detach();
}

ProgressBoard::~ProgressBoard() {
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, store_limit, [this] { return state_->ended; });
}

void ProgressBoard::started(const std::string& group, std::int64_t number) {
  std::lock_guard lock(state_->mutex);
  state_->mine.started[group] = number;
}

void ProgressBoard::waits_for(std::optional<Place> place) {
  std::lock_guard lock(state_->mutex);
  state_->mine.waits = std::move(place);
}

ProgressBoard::Absent ProgressBoard::absent(const Place& place) {
  std::unique_lock lock(state_->mutex);
  state_->answer.reset();
  state_->question = place;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, store_limit, [this] { return state_->answer || state_->ended; });
  if (state_->answer) return *state_->answer;
  // Rank 0 serves the store, unless the launcher does.
  return {{0}, "the store at rank 0 no longer answers: absent ranks: 0 (no longer answers)"};
}

}  // namespace yoke
