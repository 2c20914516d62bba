#include "daemon/metrics/metrics_board.h"

#include "base/clock.h"
#include "base/status_macros.h"

namespace terrace {

const char* PhaseName(DaemonPhase phase) {
  switch (phase) {
    case DaemonPhase::kStarting:
      return "starting";
    case DaemonPhase::kServing:
      return "serving";
    case DaemonPhase::kDraining:
      return "draining";
    case DaemonPhase::kEnding:
      break;
  }
  return "ending";
}

absl::StatusOr<std::unique_ptr<MetricsBoard>> MetricsBoard::Make() {
  TERRACE_ASSIGN_OR_RETURN(WakeEvent for_server, WakeEvent::Make());
  TERRACE_ASSIGN_OR_RETURN(WakeEvent for_responder, WakeEvent::Make());
  return std::unique_ptr<MetricsBoard>(
      new MetricsBoard(std::move(for_server), std::move(for_responder)));
}

MetricsBoard::~MetricsBoard() {
  FreeAll(newest_.load());
  FreeAll(given_back_.load());
}

void MetricsBoard::FreeAll(MetricsText* first) {
  while (first != nullptr) delete std::exchange(first, first->next);
}

void MetricsBoard::Publish(std::string text, uint64_t number) {
  auto made = std::make_unique<MetricsText>();
  made->text = std::move(text);
  made->number = number;
  made->made_at = absl::ToUnixNanos(SystemClock().Now());
  delete newest_.exchange(made.release());
  FreeAll(given_back_.exchange(nullptr));
  for_responder_.Set();
}

uint64_t MetricsBoard::Ask() {
  const uint64_t number = asked_.fetch_add(1, std::memory_order_acq_rel) + 1;
  for_server_.Set();
  return number;
}

void MetricsBoard::GiveBack(MetricsText* text) {
  text->next = given_back_.load(std::memory_order_relaxed);
  while (!given_back_.compare_exchange_weak(
      text->next, text, std::memory_order_release, std::memory_order_relaxed)) {
  }
}

}  // namespace terrace
