// Where one rank's stdout and stderr go: into its log file as they are, and line by line to whoever watches.
#pragma once

#include <array>
#include <functional>
#include <string>

#include "core/base/result.h"
#include "ops/launch/lines.h"
#include "os/fd.h"

namespace yoke {

enum class Stream { out, err };

class RankOutput {
 public:
  using Sink = std::function<void(Stream, const std::string& line)>;

  // log_file: appended to; empty: none.
  static Result<RankOutput> open(const std::string& log_file);

  // Fresh pipes for an attempt, and a line in the log that says so. The ends to write to go to the rank.
  struct Ends {
    Fd out, err;
  };
  Result<Ends> connect(int attempt);

  // To poll; -1 once the stream has ended.
  int fd(Stream stream) const { return channel(stream).pipe.get(); }
  // Takes what has arrived, without blocking.
  void read(Stream stream, const Sink& sink);
  // The same until nothing is there (for a rank that has ended), both streams.
  void drain(const Sink& sink);
  // The attempt is over: drains, hands on last lines that have no end, and closes the pipes.
  void finish(const Sink& sink);

  std::vector<std::string> last_lines() const { return last_.lines(); }
  // Why the log file is not complete, once.
  std::string take_log_problem() { return std::exchange(log_problem_, {}); }

 private:
  struct Channel {
    Fd pipe;
    LineSplitter lines;
  };
  const Channel& channel(Stream s) const { return channels_[s == Stream::err]; }
  Channel& channel(Stream s) { return channels_[s == Stream::err]; }
  bool read_some(Stream stream, const Sink& sink);
  void pass_on(Stream stream, const std::vector<std::string>& lines, const Sink& sink);
  void write_log(std::string_view bytes);

  std::array<Channel, 2> channels_;
  LastLines last_;
  std::string log_file_, log_problem_;
  Fd log_;
};

}  // namespace yoke
