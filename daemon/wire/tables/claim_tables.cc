#include "daemon/wire/tables/claim_tables.h"

#include <cstring>
#include <utility>

namespace terrace {
namespace {

flatbuffers::Offset<flat::ClaimedQueue> Write(FlatBuilder& builder,
                                              const ClaimedQueue& queue) {
  return flat::CreateClaimedQueue(builder, queue.queue, queue.step.has_value(),
                                  queue.step.value_or(0), queue.hold_at_most);
}

ClaimedQueue Read(const flat::ClaimedQueue& table) {
  ClaimedQueue queue;
  queue.queue = table.queue();
  if (table.steps()) queue.step = table.step();
  queue.hold_at_most = table.hold_at_most();
  return queue;
}

}  // namespace

flatbuffers::Offset<flatbuffers::Vector<uint8_t>> WriteToken(
    FlatBuilder& builder, const JobToken& token) {
  if (token == JobToken{}) return 0;
  return builder.CreateVector(reinterpret_cast<const uint8_t*>(token.data()),
                              token.size());
}

absl::StatusOr<JobToken> ReadToken(const flatbuffers::Vector<uint8_t>* bytes) {
  JobToken token{};
  if (bytes == nullptr) return token;
  if (bytes->size() != token.size()) {
    return WrongMessage(
        absl::StrCat("has a token of ", bytes->size(), " bytes"));
  }
  std::memcpy(token.data(), bytes->data(), token.size());
  return token;
}

flatbuffers::Offset<flat::Claim> WriteClaim(FlatBuilder& builder,
                                            const ClaimRequest& claim) {
  std::vector<flatbuffers::Offset<flat::ClaimedQueue>> queues;
  for (const ClaimedQueue& each : claim.queues) {
    queues.push_back(Write(builder, each));
  }
  std::vector<flat::TensorRange> ranges;
  for (const TensorRange& each : claim.known) {
    ranges.emplace_back(each.first, each.end);
  }
  std::vector<int64_t> ids;
  for (const TensorId each : claim.unregistering) ids.push_back(each.value);
  const auto queue_list = builder.CreateVector(queues);
  const auto pins = builder.CreateVector(claim.pins);
  const auto recalled = builder.CreateVector(claim.recalled);
  const auto kept = builder.CreateVector(claim.kept);
  const auto known = builder.CreateVectorOfStructs(ranges);
  const auto id_list = builder.CreateVector(ids);
  return flat::CreateClaim(builder, claim.memory_bytes, queue_list, pins,
                           recalled, kept, known, id_list);
}

absl::StatusOr<JobRequest> ReadClaim(const flat::Claim& table,
                                     FlatReader& reader) {
  ClaimRequest claim;
  claim.memory_bytes = table.memory_bytes();
  TERRACE_RETURN_IF_ERROR(reader.Tables(
      table.queues(), "queues",
      [](const flat::ClaimedQueue& each) -> absl::StatusOr<ClaimedQueue> {
        return Read(each);
      },
      &claim.queues));
  TERRACE_RETURN_IF_ERROR(reader.Numbers(table.pins(), "pins", &claim.pins));
  TERRACE_RETURN_IF_ERROR(
      reader.Numbers(table.recalled(), "recalls", &claim.recalled));
  TERRACE_RETURN_IF_ERROR(
      reader.Numbers(table.kept(), "kept pins", &claim.kept));
  TERRACE_RETURN_IF_ERROR(reader.Structs(
      table.known(), "tensors",
      [](const flat::TensorRange& each) {
        return TensorRange{each.first(), each.end()};
      },
      &claim.known));
  std::vector<int64_t> ids;
  TERRACE_RETURN_IF_ERROR(
      reader.Numbers(table.unregistering(), "tensors", &ids));
  for (const int64_t each : ids) claim.unregistering.push_back({each});
  return claim;
}

}  // namespace terrace
