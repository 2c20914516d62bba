// An Envelope is one message between a host's daemon and a process that is
// connected to it: a request, or the answer with the same number; or what a
// runtime's client and the runtime say to each other. Its bytes are a
// FlatBuffer (daemon/wire/control.fbs), which this is the one door of. A
// message that is longer than a packet comes in several, as fragments
// (daemon/wire/fragments.h).
//
// What comes from the other side is verified first, then checked: the protocol,
// a body that is known, every field that must be there, ranges. A decoded
// Envelope shares nothing with the bytes, and takes no more than some multiple
// of them, however often they name one another.
//
// Plain values; the functions are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "daemon/wire/daemon_status.h"
#include "daemon/wire/job_messages.h"

namespace terrace {

inline constexpr uint16_t kWireProtocol = 1;
// What one packet may have at most, and one message.
inline constexpr size_t kMostPacketBytes = 64 << 10;
inline constexpr size_t kMostMessageBytes = 64 << 20;

// The answer to a request that is not served; never OK.
struct Refusal {
  absl::Status why;
};

using EnvelopeBody =
    std::variant<StatusRequest, DaemonStatus, Refusal, Hello, Welcome,
                 JobRequests, JobNews, Fragment, TensorsRequest, TensorsPage,
                 DrainRequest, EvictionRequest, EvictionReport>;

// Who reads: a daemon is sent no answers, and does not look into one.
enum class WireReader : uint8_t { kClient, kDaemon };

struct Envelope {
  uint64_t sequence = 0;
  EnvelopeBody body;
};

// More than `most_bytes` are an error of the caller: ResourceExhausted, which
// names the bytes.
absl::StatusOr<std::vector<std::byte>> Encode(
    const Envelope& envelope, size_t most_bytes = kMostPacketBytes);

// The same of one envelope after another, in memory that is kept for the next.
// One thread at a time.
class EnvelopeWriter {
 public:
  EnvelopeWriter();
  ~EnvelopeWriter();
  EnvelopeWriter(EnvelopeWriter&&) noexcept;

  // Until the next Encode.
  absl::StatusOr<absl::Span<const std::byte>> Encode(const Envelope& envelope,
                                                     size_t most_bytes);

 private:
  struct Buffer;  // FlatBuffers' builder
  std::unique_ptr<Buffer> buffer_;
};

// InvalidArgument, which says what is wrong: more than `most_bytes`, no
// FlatBuffer of this kind, another protocol (both numbers), a body that is not
// known or not the reader's, a field that is absent or out of its range.
absl::StatusOr<Envelope> Decode(absl::Span<const std::byte> bytes,
                                size_t most_bytes = kMostPacketBytes,
                                WireReader reader = WireReader::kClient);
// The same into an envelope that is there; after an error it is any.
absl::Status Decode(absl::Span<const std::byte> bytes, size_t most_bytes,
                    WireReader reader, Envelope* envelope);

}  // namespace terrace
