#include "daemon/wire/envelope.h"

#include <daemon/wire/control_generated.h>  // of control.fbs
#include <flatbuffers/flatbuffers.h>

#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

// What an honest message comes to: a status of a thousand users.
constexpr flatbuffers::uoffset_t kMostDepth = 8;
constexpr flatbuffers::uoffset_t kMostTables = 4096;

using Builder = flatbuffers::FlatBufferBuilder;

template <typename Table>
using Tables = flatbuffers::Vector<flatbuffers::Offset<Table>>;

// One overload for each body: which member of the union it is, and its table.
struct Written {
  flat::Body kind = flat::Body::NONE;
  flatbuffers::Offset<void> table;
};

Written Write(Builder& builder, const StatusRequest& /*request*/) {
  return {flat::Body::StatusRequest,
          flat::CreateStatusRequest(builder).Union()};
}

Written Write(Builder& builder, const DaemonStatus& status) {
  std::vector<flatbuffers::Offset<flat::TierUse>> tiers;
  for (const DaemonStatus::Tier& each : status.tiers) {
    tiers.push_back(flat::CreateTierUseDirect(
        builder, each.name.c_str(), each.budget_bytes, each.used_bytes,
        each.fault.empty() ? nullptr : each.fault.c_str()));
  }
  std::vector<flatbuffers::Offset<flat::UserUse>> users;
  for (const DaemonStatus::User& each : status.users) {
    users.push_back(flat::CreateUserUse(builder, each.uid, each.connections,
                                        each.connection_limit));
  }
  return {flat::Body::Status,
          flat::CreateStatusDirect(builder, status.version.c_str(), status.pid,
                                   status.phase.c_str(), status.silent_for_ms,
                                   &tiers, &users)
              .Union()};
}

Written Write(Builder& builder, const Refusal& refusal) {
  const std::string message(refusal.why.message());
  return {
      flat::Body::Refusal,
      flat::CreateRefusalDirect(
          builder, static_cast<int32_t>(refusal.why.code()), message.c_str())
          .Union()};
}

absl::Status Wrong(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("a control message that ", what));
}

// A field that a writer of this protocol always sets.
absl::StatusOr<std::string> Text(const flatbuffers::String* text,
                                 absl::string_view field) {
  if (text == nullptr) return Wrong(absl::StrCat("has no ", field));
  return text->str();
}

absl::StatusOr<DaemonStatus::Tier> Read(const flat::TierUse& table) {
  DaemonStatus::Tier tier;
  TERRACE_ASSIGN_OR_RETURN(tier.name, Text(table.name(), "tier's name"));
  tier.budget_bytes = table.budget_bytes();
  tier.used_bytes = table.used_bytes();
  if (tier.budget_bytes < 0 || tier.used_bytes < 0) {
    return Wrong("has a tier of less than no bytes");
  }
  if (table.fault() != nullptr) tier.fault = table.fault()->str();
  return tier;
}

absl::StatusOr<DaemonStatus::User> Read(const flat::UserUse& table) {
  if (table.connections() < 0 || table.connection_limit() < 0) {
    return Wrong("has a user of less than no connections");
  }
  return DaemonStatus::User{table.uid(), table.connections(),
                            table.connection_limit()};
}

template <typename Value, typename Table>
absl::Status ReadAll(const Tables<Table>* tables, absl::string_view field,
                     std::vector<Value>* values) {
  if (tables == nullptr) return Wrong(absl::StrCat("has no ", field));
  for (const Table* const table : *tables) {
    TERRACE_ASSIGN_OR_RETURN(Value value, Read(*table));
    values->push_back(std::move(value));
  }
  return absl::OkStatus();
}

absl::StatusOr<DaemonStatus> Read(const flat::Status& table) {
  DaemonStatus status;
  TERRACE_ASSIGN_OR_RETURN(status.version, Text(table.version(), "version"));
  TERRACE_ASSIGN_OR_RETURN(status.phase, Text(table.phase(), "phase"));
  status.pid = table.pid();
  status.silent_for_ms = table.silent_for_ms();
  if (status.silent_for_ms < 0) return Wrong("ends before it begins");
  TERRACE_RETURN_IF_ERROR(ReadAll(table.tiers(), "tiers", &status.tiers));
  TERRACE_RETURN_IF_ERROR(ReadAll(table.users(), "users", &status.users));
  return status;
}

absl::StatusOr<Refusal> Read(const flat::Refusal& table) {
  TERRACE_ASSIGN_OR_RETURN(const std::string message,
                           Text(table.message(), "reason"));
  const int32_t code = table.code();
  const auto most = static_cast<int32_t>(absl::StatusCode::kUnauthenticated);
  if (code <= 0 || code > most) {
    return Wrong(absl::StrCat("refuses with the code ", code));
  }
  return Refusal{absl::Status(static_cast<absl::StatusCode>(code), message)};
}

absl::StatusOr<EnvelopeBody> ReadBody(const flat::Envelope& envelope) {
  // What the verifier knows of no member it takes for whole.
  if (envelope.body() == nullptr) return Wrong("has no body");
  switch (envelope.body_type()) {
    case flat::Body::StatusRequest:
      return StatusRequest();
    case flat::Body::Status:
      return Read(*envelope.body_as_Status());
    case flat::Body::Refusal:
      return Read(*envelope.body_as_Refusal());
    case flat::Body::NONE:
      break;
  }
  return Wrong(absl::StrCat("has a body of the unknown kind ",
                            static_cast<int>(envelope.body_type())));
}

}  // namespace

absl::StatusOr<std::vector<std::byte>> Encode(const Envelope& envelope) {
  Builder builder;
  const Written body = std::visit(
      [&](const auto& each) { return Write(builder, each); }, envelope.body);
  flat::FinishEnvelopeBuffer(
      builder, flat::CreateEnvelope(builder, kWireProtocol, envelope.sequence,
                                    body.kind, body.table));
  if (builder.GetSize() > kMostPacketBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a control message of ", builder.GetSize(),
                     " bytes; a packet has ", kMostPacketBytes));
  }
  const auto* const begin =
      reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  return std::vector<std::byte>(begin, begin + builder.GetSize());
}

absl::StatusOr<Envelope> Decode(absl::Span<const std::byte> bytes) {
  if (bytes.size() > kMostPacketBytes) {
    return Wrong(absl::StrCat("has ", bytes.size(), " bytes; a packet has ",
                              kMostPacketBytes));
  }
  // Fields are read where they lie, so that the whole begins at a multiple of
  // the largest one.
  std::vector<uint64_t> aligned(bytes.size() / sizeof(uint64_t) + 1);
  if (!bytes.empty()) std::memcpy(aligned.data(), bytes.data(), bytes.size());
  const auto* const begin = reinterpret_cast<const uint8_t*>(aligned.data());
  flatbuffers::Verifier verifier(begin, bytes.size(), kMostDepth, kMostTables);
  if (!flat::VerifyEnvelopeBuffer(verifier)) {
    return Wrong("is none: it cannot be verified");
  }
  const flat::Envelope& flat = *flat::GetEnvelope(begin);
  if (flat.protocol() != kWireProtocol) {
    return Wrong(absl::StrCat("speaks the protocol ", flat.protocol(),
                              "; this is ", kWireProtocol));
  }
  Envelope envelope;
  envelope.sequence = flat.sequence();
  TERRACE_ASSIGN_OR_RETURN(envelope.body, ReadBody(flat));
  return envelope;
}

}  // namespace terrace
