// Reads and writes of an optimizer's state, outside of steps: ranges of a
// parameter, wherever its chunks are.
//
// One thread at a time. State, requests and clock must outlive it; each chunk
// is held in the HeldChunks that callers bring. What is allowed when is not
// asked here: see StateGuard.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "optimizer/chunks/chunk_requests.h"
#include "optimizer/chunks/held_chunks.h"
#include "optimizer/state/optimizer_state.h"
#include "optimizer/state/state_guard.h"
#include "terrace/optimizer.h"

namespace terrace {

class StateStore {
 public:
  using Kind = OffloadedOptimizer::StateKind;

  StateStore(OptimizerState& state, ChunkRequests& requests, Clock& clock)
      : state_(state), requests_(requests), clock_(clock) {}

  // InvalidArgument, naming the parameter: there are no such elements.
  absl::Status CheckRange(int parameter, Kind kind, int64_t offset,
                          size_t count) const;
  // Whether all elements of that kind mean something.
  bool HasState(int parameter, Kind kind) const;

  // As StateReader::Read and StateWriter::Write.
  absl::Status Read(HeldChunks& held, int parameter, int64_t offset,
                    const StateSpans& out, absl::Time deadline) const;
  absl::Status Write(HeldChunks& held, int parameter, int64_t offset,
                     const StateValues& values, absl::Time deadline);
  // The parameter is as before its first step.
  void Forget(int parameter);

  HeldChunks Hold() const { return {state_.chunks, requests_}; }
  Clock& clock() const { return clock_; }
  OptimizerState& state() const { return state_; }

 private:
  struct Wanted;

  absl::Status ReadPiece(HeldChunks& held, const ChunkPiece& piece,
                         const Wanted& wanted, absl::Time deadline) const;
  absl::Status WritePiece(HeldChunks& held, const ChunkPiece& piece,
                          const StateValues& values, absl::Time deadline);

  OptimizerState& state_;
  ChunkRequests& requests_;
  Clock& clock_;
};

// A customer's. Store and guard must outlive it. From here until the reader
// goes, or the writer does or is committed, the guard says so to others.
std::unique_ptr<StateReader> MakeStateReader(const StateStore& store,
                                             StateGuard& guard);
std::unique_ptr<StateWriter> MakeStateWriter(StateStore& store,
                                             StateGuard& guard);

}  // namespace terrace
