// Who asks, and for what an answer is: values that would pass over a wire.
#pragma once

#include <cstdint>

namespace terrace {

// A client of the runtime: whoever posts requests and has a port for answers.
// Each has its own tensors, queues and pins.
using ClientId = int32_t;
// The process that made the runtime.
inline constexpr ClientId kLocalClient = 0;

// Names one request. The client counts them; the answer carries the same id.
struct RequestId {
  ClientId client = kLocalClient;
  uint64_t number = 0;  // from 1 on; 0: no answer is owed

  bool empty() const { return number == 0; }
  friend bool operator==(RequestId, RequestId) = default;
};

// A pin's token has its client's bits: no client ends another's.
inline constexpr int kTokenBits = 48;
constexpr uint64_t TokensOf(ClientId client) {
  return static_cast<uint64_t>(client) << kTokenBits;
}
constexpr ClientId ClientOfToken(uint64_t token) {
  return static_cast<ClientId>(token >> kTokenBits);
}

}  // namespace terrace
