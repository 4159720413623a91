#include "ops/launch/rank_output.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>

#include "os/clock.h"

namespace yoke {
namespace {

constexpr std::size_t piece = 64 * 1024;  // what a pipe holds

Result<Fd> make_pipe(Fd& read_end) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return fail(ErrorKind::environment, fmt::format("no pipe for a rank's output: {}", std::strerror(errno)),
                "raise the limit on open files (ulimit -n)");
  }
  read_end = Fd(ends[0]);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);  // this end only: the rank's stays as programs expect it
  return Fd(ends[1]);
}

}  // namespace

Result<RankOutput> RankOutput::open(const std::string& log_file) {
  RankOutput output;
  if (log_file.empty()) return output;
  output.log_file_ = log_file;
  output.log_ = Fd(::open(log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!output.log_) return fail(ErrorKind::environment, fmt::format("{}: {}", log_file, std::strerror(errno)));
  return output;
}

Result<RankOutput::Ends> RankOutput::connect(int attempt) {
  Ends ends;
  YOKE_TRY(ends.out, make_pipe(channel(Stream::out).pipe));
  YOKE_TRY(ends.err, make_pipe(channel(Stream::err).pipe));
  last_ = {};
  write_log(fmt::format("=== attempt {}, {} ===\n", attempt, utc_text(unix_ns())));
  return ends;
}

void RankOutput::write_log(std::string_view bytes) {
  if (!log_) return;
  while (!bytes.empty()) {
    ssize_t done = ::write(log_.get(), bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) {  // a full disk must not stop the training
      log_problem_ = fmt::format("{}: {}; the log ends here", log_file_, std::strerror(errno));
      log_.reset();
      return;
    }
    bytes.remove_prefix(static_cast<std::size_t>(done));
  }
}

void RankOutput::pass_on(Stream stream, const std::vector<std::string>& lines, const Sink& sink) {
  for (const std::string& line : lines) {
    last_.add(line);
    sink(stream, line);
  }
}

// False if there was nothing.
bool RankOutput::read_some(Stream stream, const Sink& sink) {
  Channel& from = channel(stream);
  if (!from.pipe) return false;
  char buffer[piece];
  ssize_t got = ::read(from.pipe.get(), buffer, sizeof buffer);
  if (got < 0) return errno == EINTR;
  if (got == 0) {
    from.pipe.reset();
    pass_on(stream, from.lines.flush(), sink);
    return false;
  }
  std::string_view bytes(buffer, static_cast<std::size_t>(got));
  write_log(bytes);
  pass_on(stream, from.lines.feed(bytes), sink);
  return true;
}

void RankOutput::read(Stream stream, const Sink& sink) { read_some(stream, sink); }

void RankOutput::drain(const Sink& sink) {
  for (Stream stream : {Stream::out, Stream::err}) {
    // A descendant that goes on writing must not keep us here: more than a pipe holds is not from the one that ended.
    for (int i = 0; i < 16 && read_some(stream, sink); ++i) {
    }
  }
}

void RankOutput::finish(const Sink& sink) {
  drain(sink);
  for (Stream stream : {Stream::out, Stream::err}) {
    channel(stream).pipe.reset();
    pass_on(stream, channel(stream).lines.flush(), sink);
  }
}

}  // namespace yoke
