#include "daemon/metrics/metrics_responder.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <tuple>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/threads/own_thread.h"
#include "daemon/wire/poll_timeout.h"

namespace terrace {
namespace {

using State = HttpConnection::State;

constexpr absl::Duration kPause = absl::Seconds(1);
constexpr char kWatchStopped[] = "stopped: watch\n";

// Lines in a room of a fixed size; what has no place in it is left out.
class Page {
 public:
  template <typename... Values>
  void Add(const char* format, Values... values) {
    const int bytes = std::snprintf(room_.data() + used_, room_.size() - used_,
                                    format, values...);
    if (bytes > 0 && used_ + static_cast<size_t>(bytes) < room_.size()) {
      used_ += static_cast<size_t>(bytes);
    }
  }
  absl::string_view text() const { return {room_.data(), used_}; }

 private:
  std::array<char, 4 << 10> room_;
  size_t used_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsResponder>> MetricsResponder::Start(
    MetricsListener listener, const Parts& parts) {
  try {
    return std::unique_ptr<MetricsResponder>(
        new MetricsResponder(std::move(listener), parts));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start the metrics' thread: ", error.what()));
  }
}

MetricsResponder::MetricsResponder(MetricsListener listener, const Parts& parts)
    : listener_(std::move(listener)), parts_(parts) {
  thread_ = StartThread("terrace-metrics", [this] { Run(); });
}

MetricsResponder::~MetricsResponder() {
  ends_ = true;
  parts_.board->for_responder().Set();
  thread_.join();
  for (HttpConnection& each : connections_) {
    each.End();
    TakeBack(each);
  }
  if (newest_ != nullptr) parts_.board->GiveBack(newest_);
}

void MetricsResponder::Run() {
  while (!ends_) Turn();
}

absl::Time MetricsResponder::Next() const {
  absl::Time next = accepts_again_;
  for (const HttpConnection& each : connections_) {
    if (each.state() != State::kNone) next = std::min(next, each.deadline());
  }
  return next;
}

void MetricsResponder::Turn() {
  std::array<pollfd, kMostConnections + 2> waits;
  const bool accepts = accepts_again_ == absl::InfiniteFuture();
  waits[0] = {accepts ? listener_.descriptor() : -1, POLLIN, 0};
  waits[1] = {parts_.board->for_responder().descriptor(), POLLIN, 0};
  for (size_t i = 0; i < kMostConnections; ++i) {
    waits[i + 2] = {connections_[i].descriptor(), connections_[i].events(), 0};
  }
  poll(waits.data(), waits.size(), PollTimeout(Next()));
  const absl::Time now = SystemClock().Now();
  parts_.board->for_responder().Clear();
  parts_.heartbeat->Beat();
  TakeNewest();
  if (now >= accepts_again_) accepts_again_ = absl::InfiniteFuture();
  for (size_t i = 0; i < kMostConnections; ++i) {
    Serve(connections_[i], waits[i + 2].revents, now);
  }
  AnswerMetrics(now);
  // Last: what is new has not been waited for yet.
  if (waits[0].revents != 0) Accept(now);
  for (HttpConnection& each : connections_) TakeBack(each);
}

void MetricsResponder::Accept(absl::Time now) {
  for (size_t i = 0; i < kMostConnections; ++i) {
    // The daemon forks no children that could have it.
    const int fd = accept4(listener_.descriptor(), nullptr, nullptr,
                           SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      // Who waits is ready still, and would be in each turn.
      const bool is_full = errno == EMFILE || errno == ENFILE ||
                           errno == ENOBUFS || errno == ENOMEM;
      if (is_full) accepts_again_ = now + kPause;
      return;
    }
    const uid_t user = listener_.UserOf(fd);
    HttpConnection& place = PlaceFor(user, now);
    place.Begin(fd, user, now);
    Serve(place, POLLIN, now);
  }
}

HttpConnection& MetricsResponder::PlaceFor(uid_t user, absl::Time now) {
  for (HttpConnection& each : connections_) {
    if (each.state() != State::kNone) continue;
    TakeBack(each);  // it may have ended in this turn
    return each;
  }
  HttpConnection& loser = Loser(user);
  Hurry(loser, now);
  loser.End();
  TakeBack(loser);
  return loser;
}

// All are taken. Who has its answer loses nothing, and goes first.
HttpConnection& MetricsResponder::Loser(uid_t user) {
  const auto rank = [&](const HttpConnection& one) {
    const auto places = absl::c_count_if(connections_, [&](const auto& each) {
      return each.user() == one.user();
    });
    const auto with_new = places + (one.user() == user ? 1 : 0);
    return std::tuple(-with_new, one.state() != State::kLingers, one.begun());
  };
  return *std::min_element(
      connections_.begin(), connections_.end(),
      [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
}

void MetricsResponder::Hurry(HttpConnection& connection, absl::Time now) {
  Serve(connection, POLLIN, now);
  if (connection.state() == State::kWaits) AnswerMetrics(connection, now);
}

void MetricsResponder::Serve(HttpConnection& connection, short events,
                             absl::Time now) {
  if (connection.state() == State::kNone) return;
  const bool waits = connection.state() == State::kWaits;
  if (waits && (events & (POLLHUP | POLLERR)) != 0) return connection.End();
  if (events != 0) connection.Serve(now);
  if (connection.state() == State::kAsked) {
    Answer(connection, now);
    connection.Serve(now);
  }
  if (!waits && now >= connection.deadline()) connection.End();
}

void MetricsResponder::Answer(HttpConnection& connection, absl::Time now) {
  const HttpRequest& request = connection.request();
  if (listener_.is_port() && !IsLoopbackHost(request.host)) {
    return connection.Answer("403 Forbidden",
                             "the Host is not this one's loopback\n", now);
  }
  if (request.method != "GET" && request.method != "HEAD") {
    return connection.Answer("405 Method Not Allowed", "GET and HEAD alone\n",
                             now);
  }
  if (request.path == "/metrics") {
    return connection.AwaitMetrics(parts_.board->Ask(), now);
  }
  if (request.path == "/healthz") {
    return connection.Answer("200 OK", "ok\n", now);
  }
  if (request.path == "/readyz") return AnswerReady(connection, now);
  connection.Answer("404 Not Found", "/metrics, /healthz and /readyz\n", now);
}

void MetricsResponder::AnswerReady(HttpConnection& connection, absl::Time now) {
  Page page;
  const DaemonPhase phase = parts_.board->phase();
  bool is_ready = phase == DaemonPhase::kServing;
  page.Add("%s\n", PhaseName(phase));
  if (parts_.watch->HasStopped(now)) {
    is_ready = false;
    page.Add("%s", kWatchStopped);
  }
  parts_.loops->ForEachStopped(
      now, [&](const LoopName& name, absl::Duration silence) {
        is_ready = false;
        std::array<char, 128> text;
        WriteLoopText(name, text.data(), text.size());
        page.Add("stopped: %s, for %.1f s\n", text.data(),
                 absl::ToDoubleSeconds(silence));
      });
  connection.Answer(is_ready ? "200 OK" : "503 Service Unavailable",
                    page.text(), now);
}

void MetricsResponder::TakeNewest() {
  MetricsText* const taken = parts_.board->Take();
  if (taken == nullptr) return;
  MetricsText* const before = std::exchange(newest_, taken);
  if (before != nullptr && before->readers == 0) {
    parts_.board->GiveBack(before);
  }
}

void MetricsResponder::TakeBack(HttpConnection& connection) {
  MetricsText* const text = connection.TakeText();
  if (text == nullptr) return;
  if (--text->readers == 0 && text != newest_) parts_.board->GiveBack(text);
}

void MetricsResponder::AnswerMetrics(absl::Time now) {
  for (HttpConnection& each : connections_) {
    if (each.state() != State::kWaits) continue;
    const bool is_answered =
        newest_ != nullptr && newest_->number >= each.number();
    if (is_answered || now >= each.deadline()) AnswerMetrics(each, now);
  }
}

void MetricsResponder::AnswerMetrics(HttpConnection& connection,
                                     absl::Time now) {
  if (newest_ == nullptr) {
    connection.Answer("503 Service Unavailable",
                      "there are no metrics yet; see /readyz\n", now);
    return connection.Serve(now);
  }
  Page page;
  const int64_t age = absl::ToUnixNanos(now) - newest_->made_at;
  page.Add(
      "# HELP terrace_metrics_age_seconds Since these were put "
      "together\n# TYPE terrace_metrics_age_seconds gauge\n"
      "terrace_metrics_age_seconds %.3f\n",
      static_cast<double>(std::max<int64_t>(age, 0)) / 1e9);
  const int64_t stopped =
      parts_.loops->CountStopped(now) + (parts_.watch->HasStopped(now) ? 1 : 0);
  page.Add(
      "# HELP terrace_loops_stopped Loops that do not turn\n"
      "# TYPE terrace_loops_stopped gauge\n"
      "terrace_loops_stopped %lld\n",
      static_cast<long long>(stopped));
  ++newest_->readers;
  connection.AnswerMetrics(newest_, page.text(), now);
  connection.Serve(now);
}

}  // namespace terrace
