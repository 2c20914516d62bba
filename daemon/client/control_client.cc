#include "daemon/client/control_client.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "daemon/wire/fragments.h"

namespace terrace {
namespace {

constexpr uint64_t kOnly = 1;  // the number of a connection's one request

}  // namespace

absl::StatusOr<Answered> AskOver(PacketSocket& socket, EnvelopeBody body,
                                 absl::Time deadline) {
  TERRACE_ASSIGN_OR_RETURN(
      const std::vector<std::byte> bytes,
      Encode({.sequence = kOnly, .body = std::move(body)}));
  // A connection that was refused has its answer without a request.
  const absl::StatusOr<bool> sent = socket.Send(bytes);
  if (!sent.ok() && !absl::IsUnavailable(sent.status())) return sent.status();
  FragmentReader reader;
  std::vector<OwnDescriptor> descriptors;
  Envelope envelope;
  for (bool is_whole = false; !is_whole;) {
    TERRACE_ASSIGN_OR_RETURN(Packet packet, socket.Await(deadline));
    TERRACE_ASSIGN_OR_RETURN(is_whole, reader.Add(packet.bytes, &envelope));
    std::move(packet.descriptors.begin(), packet.descriptors.end(),
              std::back_inserter(descriptors));
  }
  // Of what cannot be read it has no number.
  if (const auto* const refusal = std::get_if<Refusal>(&envelope.body)) {
    return refusal->why;
  }
  if (envelope.sequence == kOnly) {
    return Answered{std::move(envelope.body), std::move(descriptors)};
  }
  return absl::InternalError(absl::StrCat("the daemon answered the request ",
                                          envelope.sequence, ", where ", kOnly,
                                          " is due"));
}

absl::StatusOr<std::string> SocketPathOf(absl::string_view address) {
  absl::string_view path = address;
  absl::ConsumePrefix(&path, "unix:");
  if (!path.empty() && path[0] == '/') return std::string(path);
  return absl::InvalidArgumentError(
      absl::StrCat("'", address,
                   "' is no address of a daemon, such as "
                   "unix:/run/terrace/control.sock"));
}

}  // namespace terrace
