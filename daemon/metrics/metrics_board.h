// What passes between a daemon's first thread, the server, and the responder
// that tells its metrics: the responder asks, the server has a text made and
// puts it here. Neither waits for the other, and neither takes a lock or frees
// what the other has allocated: a server that stopped holds up nobody who asks
// whether it turns.
//
// One server, one responder; phase() is anyone's.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "daemon/wire/wake_event.h"

namespace terrace {

enum class DaemonPhase : uint8_t { kStarting, kServing, kDraining, kEnding };

// "starting", "serving", "draining", "ending".
const char* PhaseName(DaemonPhase phase);

// Metrics in the format that is scraped.
struct MetricsText {
  std::string text;
  uint64_t number = 0;  // of the question that it answers
  int readers = 0;      // the responder's
  int64_t made_at = 0;  // nanoseconds of SystemClock()
  MetricsText* next = nullptr;
};

class MetricsBoard {
 public:
  // ResourceExhausted: there is no descriptor.
  static absl::StatusOr<std::unique_ptr<MetricsBoard>> Make();
  ~MetricsBoard();
  MetricsBoard(const MetricsBoard&) = delete;
  MetricsBoard& operator=(const MetricsBoard&) = delete;

  DaemonPhase phase() const { return phase_.load(std::memory_order_relaxed); }
  void SetPhase(DaemonPhase phase) { phase_ = phase; }

  // Set where the server is to look; where the responder is.
  const WakeEvent& for_server() const { return for_server_; }
  const WakeEvent& for_responder() const { return for_responder_; }

  // The server: the number of the newest question; 0: there was none.
  uint64_t asked() const { return asked_.load(std::memory_order_acquire); }
  // An answer to all questions up to that number; frees what the responder has
  // given back.
  void Publish(std::string text, uint64_t number);

  // The responder: asks; the number of its question.
  uint64_t Ask();
  // What was published and not taken yet; null: nothing. It is given back.
  MetricsText* Take() { return newest_.exchange(nullptr); }
  void GiveBack(MetricsText* text);

 private:
  MetricsBoard(WakeEvent for_server, WakeEvent for_responder)
      : for_server_(std::move(for_server)),
        for_responder_(std::move(for_responder)) {}
  static void FreeAll(MetricsText* first);

  const WakeEvent for_server_;
  const WakeEvent for_responder_;
  std::atomic<DaemonPhase> phase_ = DaemonPhase::kStarting;
  std::atomic<uint64_t> asked_ = 0;
  std::atomic<MetricsText*> newest_ = nullptr;
  std::atomic<MetricsText*> given_back_ = nullptr;  // a list
};

}  // namespace terrace
