// Which chunks of a gradual step have all their gradients, and the pins of
// those that were fetched before: a chunk is *due* once each of its parameters
// that may come has come, or no more come. Early chunks take all slots of the
// window but one, through which every due one passes; an early one that comes
// there goes back, and is fetched again when it is due.
//
// An ordinary step has none: every chunk is due then.
//
// One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "optimizer/chunks/chunk_table.h"
#include "optimizer/step/stepped_parameters.h"
#include "terrace/optimizer.h"
#include "terrace/pin.h"

namespace terrace {

class GradientSupply {
 public:
  // Both must outlive it.
  GradientSupply(const ChunkTable& chunks, SteppedParameters& stepped)
      : chunks_(chunks), stepped_(stepped) {}
  GradientSupply(const GradientSupply&) = delete;
  GradientSupply& operator=(const GradientSupply&) = delete;

  // Of a gradual step: those with a gradient that is not null may come. Nothing
  // is held.
  void Begin(absl::Span<const ParameterSpec> specs,
             absl::Span<const ParameterData> expected);
  // Of an ordinary one.
  void Clear();
  bool is_gradual() const { return gradual_; }

  // The gradient of a parameter that may come has come. Appends the chunks that
  // are due by that and are neither held nor pushed.
  void Supply(int parameter, std::vector<int>* next);
  // No more come. Appends those that were sent back.
  void End(std::vector<int>* next);

  bool IsDue(int chunk) const;
  // Of a due one: none of its parameters has come.
  bool IsVoid(int chunk) const;

  // Requests: one is pushed; one has ended, with a pin or without.
  void OnPushed(int chunk);
  void OnTaken(int chunk);
  bool due_pushed() const { return due_pushed_ > 0; }

  // Keeps what was fetched.
  void Hold(int chunk, Pin pin);
  // A chunk that is due, with its pin; nothing: none is.
  struct HeldPin {
    int chunk;
    Pin pin;
  };
  std::optional<HeldPin> TakeDue();
  // The one that came last and is not due. It goes back.
  std::optional<int> SendBackLast();
  // Of one that is not held.
  void SendBack(int chunk);
  // Releases all that is held; the chunks.
  std::vector<int> ReleaseHeld();
  int held() const { return static_cast<int>(held_.size()); }
  int early() const;

 private:
  struct ChunkState {
    int to_come = 0;  // parameters
    int have_come = 0;
    bool pushed = false;
    bool sent_back = false;
  };

  ChunkState& state(int chunk) { return states_[static_cast<size_t>(chunk)]; }
  const ChunkState& state(int chunk) const {
    return states_[static_cast<size_t>(chunk)];
  }
  void BecomeDue(int chunk);
  bool IsHeld(int chunk) const;

  const ChunkTable& chunks_;
  SteppedParameters& stepped_;  // those that have come are expected
  bool gradual_ = false;
  bool ended_ = false;
  std::vector<ChunkState> states_;  // by chunk
  int due_pushed_ = 0;
  std::deque<HeldPin> held_;
};

}  // namespace terrace
