#include "daemon/wire/tables/request_tables.h"

#include <utility>

#include "daemon/wire/tables/claim_tables.h"

namespace terrace {
namespace {

using WrittenRequest = FlatMember<flat::Request>;

WrittenRequest Write(FlatBuilder& builder, const RegisterRequest& request) {
  std::vector<flatbuffers::Offset<flat::Spec>> specs;
  specs.reserve(request.specs.size());
  for (const TensorSpec& each : request.specs) {
    const auto name = builder.CreateString(each.name);
    specs.push_back(flat::CreateSpec(builder, name, each.size_bytes,
                                     each.global_offset, each.step_number));
  }
  const auto list = builder.CreateVector(specs);
  return {flat::Request::Register,
          flat::CreateRegister(builder, request.id.number, list).Union()};
}

WrittenRequest Write(FlatBuilder& builder, const UnregisterRequest& request) {
  return {
      flat::Request::Unregister,
      flat::CreateUnregister(builder, request.id.number, request.tensor.value)
          .Union()};
}

WrittenRequest Write(FlatBuilder& builder, const OpenRequest& request) {
  const auto tier = builder.CreateString(request.tier);
  return {flat::Request::OpenQueue,
          flat::CreateOpenQueue(builder, request.id.number, request.slot_bytes,
                                request.slots, NanosOf(request.deadline), tier)
              .Union()};
}

WrittenRequest Write(FlatBuilder& builder, const OpenBytesRequest& request) {
  const auto tier = builder.CreateString(request.tier);
  return {flat::Request::OpenBytes,
          flat::CreateOpenBytes(builder, request.id.number,
                                request.window_bytes, tier)
              .Union()};
}

WrittenRequest Write(FlatBuilder& builder, const CloseQueueRequest& request) {
  return {flat::Request::CloseQueue,
          flat::CreateCloseQueue(builder, request.queue).Union()};
}

auto WriteWants(FlatBuilder& builder, const std::vector<Want>& all) {
  std::vector<flat::Want> wants;
  wants.reserve(all.size());
  for (const Want& each : all) {
    wants.emplace_back(each.tensor.value, static_cast<uint8_t>(each.access));
  }
  return builder.CreateVectorOfStructs(wants);
}

auto WriteIds(FlatBuilder& builder, const std::vector<TensorId>& tensors) {
  std::vector<int64_t> ids;
  ids.reserve(tensors.size());
  for (const TensorId each : tensors) ids.push_back(each.value);
  return builder.CreateVector(ids);
}

WrittenRequest Write(FlatBuilder& builder, const PushRequest& request) {
  const auto list = WriteWants(builder, request.wants);
  return {flat::Request::Push,
          flat::CreatePush(builder, request.queue, list, request.tag,
                           NanosOf(request.deadline))
              .Union()};
}

WrittenRequest Write(FlatBuilder& builder, const PushBytesRequest& request) {
  const auto wants = WriteWants(builder, request.wants);
  const auto in_use = builder.CreateVector(request.in_use);
  return {
      flat::Request::PushBytes,
      flat::CreatePushBytes(builder, request.queue, wants, in_use, request.lane,
                            request.tag, NanosOf(request.deadline))
          .Union()};
}

WrittenRequest Write(FlatBuilder& builder, const WaitingRequest& request) {
  const auto in_use = builder.CreateVector(request.in_use);
  return {flat::Request::Waiting,
          flat::CreateWaiting(builder, request.queue, in_use, request.begins)
              .Union()};
}

WrittenRequest Write(FlatBuilder& builder, const HoldAtMostRequest& request) {
  return {
      flat::Request::HoldAtMost,
      flat::CreateHoldAtMost(builder, request.queue, request.bytes).Union()};
}

WrittenRequest Write(FlatBuilder& builder, const KeepRequest& request) {
  return {flat::Request::Keep,
          flat::CreateKeep(builder, request.token).Union()};
}

WrittenRequest Write(FlatBuilder& builder, const TouchRequest& request) {
  const auto tensors = WriteIds(builder, request.tensors);
  return {
      flat::Request::Touch,
      flat::CreateTouch(builder, request.queue, tensors, request.lane).Union()};
}

WrittenRequest Write(FlatBuilder& builder, const EndPinRequest& request) {
  return {flat::Request::EndPin,
          flat::CreateEndPin(builder, request.token,
                             static_cast<uint8_t>(request.end))
              .Union()};
}

WrittenRequest Write(FlatBuilder& builder, const StepRequest& request) {
  return {flat::Request::Step,
          flat::CreateStep(builder, request.id.number,
                           static_cast<uint8_t>(request.kind), request.queue,
                           request.step)
              .Union()};
}

WrittenRequest Write(FlatBuilder& builder, const PrefetchRequest& request) {
  const auto list = WriteIds(builder, request.tensors);
  return {flat::Request::Prefetch, flat::CreatePrefetch(builder, list).Union()};
}

WrittenRequest Write(FlatBuilder& builder, const StatsRequest& request) {
  return {flat::Request::AskStats,
          flat::CreateAskStats(builder, request.id.number).Union()};
}

WrittenRequest Write(FlatBuilder& builder, const GrowRequest& request) {
  return {flat::Request::Grow,
          flat::CreateGrow(builder, request.id.number, request.bytes).Union()};
}

WrittenRequest Write(FlatBuilder& builder, const ClaimRequest& request) {
  return {flat::Request::Claim, WriteClaim(builder, request).Union()};
}

WrittenRequest Write(FlatBuilder& builder, const CloseRequest& request) {
  return {flat::Request::Close,
          flat::CreateClose(builder, request.id.number,
                            NanosOf(request.deadline), request.force)
              .Union()};
}

RequestId Numbered(uint64_t number) { return {.number = number}; }

absl::StatusOr<TensorSpec> Read(const flat::Spec& table, FlatReader& reader) {
  TensorSpec spec;
  TERRACE_ASSIGN_OR_RETURN(spec.name,
                           reader.Text(table.name(), "tensor's name"));
  spec.size_bytes = table.size_bytes();
  spec.global_offset = table.global_offset();
  spec.step_number = table.step_number();
  return spec;
}

absl::StatusOr<JobRequest> Read(const flat::Register& table,
                                FlatReader& reader) {
  RegisterRequest request{Numbered(table.number()), {}};
  TERRACE_RETURN_IF_ERROR(reader.Tables(
      table.specs(), "tensors",
      [&reader](const flat::Spec& each) { return Read(each, reader); },
      &request.specs));
  return request;
}

absl::StatusOr<JobRequest> Read(const flat::Unregister& table,
                                FlatReader& /*reader*/) {
  return UnregisterRequest{Numbered(table.number()), TensorId{table.tensor()}};
}

absl::StatusOr<JobRequest> Read(const flat::OpenQueue& table,
                                FlatReader& reader) {
  OpenRequest request;
  request.id = Numbered(table.number());
  request.slot_bytes = table.slot_bytes();
  request.slots = table.slots();
  request.deadline = TimeOf(table.deadline());
  TERRACE_ASSIGN_OR_RETURN(request.tier, reader.TextOrNone(table.tier()));
  return request;
}

absl::StatusOr<JobRequest> Read(const flat::OpenBytes& table,
                                FlatReader& reader) {
  OpenBytesRequest request;
  request.id = Numbered(table.number());
  request.window_bytes = table.window_bytes();
  TERRACE_ASSIGN_OR_RETURN(request.tier, reader.TextOrNone(table.tier()));
  return request;
}

absl::StatusOr<JobRequest> Read(const flat::CloseQueue& table,
                                FlatReader& /*reader*/) {
  return CloseQueueRequest{table.queue()};
}

// Of either kind of Push.
template <typename Table, typename Push>
absl::Status ReadGroup(const Table& table, FlatReader& reader, Push* request) {
  request->queue = table.queue();
  request->tag = table.tag();
  request->deadline = TimeOf(table.deadline());
  return reader.Structs(
      table.wants(), "group",
      [](const flat::Want& each) {
        return Want{TensorId{each.tensor()},
                    static_cast<Access>(each.access())};
      },
      &request->wants);
}

absl::Status ReadIds(const flatbuffers::Vector<int64_t>* list,
                     FlatReader& reader, absl::string_view field,
                     std::vector<TensorId>* tensors) {
  std::vector<int64_t> ids;
  TERRACE_RETURN_IF_ERROR(reader.Numbers(list, field, &ids));
  tensors->reserve(ids.size());
  for (const int64_t id : ids) tensors->push_back(TensorId{id});
  return absl::OkStatus();
}

absl::StatusOr<JobRequest> Read(const flat::Push& table, FlatReader& reader) {
  PushRequest request;
  TERRACE_RETURN_IF_ERROR(ReadGroup(table, reader, &request));
  return request;
}

absl::StatusOr<JobRequest> Read(const flat::PushBytes& table,
                                FlatReader& reader) {
  PushBytesRequest request;
  TERRACE_RETURN_IF_ERROR(ReadGroup(table, reader, &request));
  TERRACE_RETURN_IF_ERROR(
      reader.Numbers(table.in_use(), "pins in use", &request.in_use));
  request.lane = table.lane();
  return request;
}

absl::StatusOr<JobRequest> Read(const flat::Waiting& table,
                                FlatReader& reader) {
  WaitingRequest request;
  request.queue = table.queue();
  TERRACE_RETURN_IF_ERROR(
      reader.Numbers(table.in_use(), "pins in use", &request.in_use));
  request.begins = table.begins();
  return request;
}

absl::StatusOr<JobRequest> Read(const flat::HoldAtMost& table,
                                FlatReader& /*reader*/) {
  return HoldAtMostRequest{table.queue(), table.bytes()};
}

absl::StatusOr<JobRequest> Read(const flat::Keep& table,
                                FlatReader& /*reader*/) {
  return KeepRequest{table.token()};
}

absl::StatusOr<JobRequest> Read(const flat::Touch& table, FlatReader& reader) {
  TouchRequest request;
  request.queue = table.queue();
  TERRACE_RETURN_IF_ERROR(
      ReadIds(table.tensors(), reader, "uses", &request.tensors));
  request.lane = table.lane();
  return request;
}

absl::StatusOr<JobRequest> Read(const flat::EndPin& table,
                                FlatReader& /*reader*/) {
  return EndPinRequest{table.token(), static_cast<PinEnd>(table.end())};
}

absl::StatusOr<JobRequest> Read(const flat::Step& table,
                                FlatReader& /*reader*/) {
  return StepRequest{Numbered(table.number()),
                     static_cast<StepRequest::Kind>(table.kind()),
                     table.queue(), table.step()};
}

absl::StatusOr<JobRequest> Read(const flat::Prefetch& table,
                                FlatReader& reader) {
  PrefetchRequest request;
  TERRACE_RETURN_IF_ERROR(
      ReadIds(table.tensors(), reader, "hint", &request.tensors));
  return request;
}

absl::StatusOr<JobRequest> Read(const flat::AskStats& table,
                                FlatReader& /*reader*/) {
  return StatsRequest{Numbered(table.number())};
}

absl::StatusOr<JobRequest> Read(const flat::Grow& table,
                                FlatReader& /*reader*/) {
  return GrowRequest{Numbered(table.number()), table.bytes()};
}

absl::StatusOr<JobRequest> Read(const flat::Close& table,
                                FlatReader& /*reader*/) {
  return CloseRequest{Numbered(table.number()), TimeOf(table.deadline()),
                      table.force()};
}

absl::StatusOr<JobRequest> Read(const flat::RequestEntry& entry,
                                FlatReader& reader) {
  // What the verifier knows of no member it takes for whole.
  if (entry.request() == nullptr) return WrongMessage("has an empty request");
  switch (entry.request_type()) {
    case flat::Request::Register:
      return Read(*entry.request_as_Register(), reader);
    case flat::Request::Unregister:
      return Read(*entry.request_as_Unregister(), reader);
    case flat::Request::OpenQueue:
      return Read(*entry.request_as_OpenQueue(), reader);
    case flat::Request::CloseQueue:
      return Read(*entry.request_as_CloseQueue(), reader);
    case flat::Request::Push:
      return Read(*entry.request_as_Push(), reader);
    case flat::Request::EndPin:
      return Read(*entry.request_as_EndPin(), reader);
    case flat::Request::Step:
      return Read(*entry.request_as_Step(), reader);
    case flat::Request::Prefetch:
      return Read(*entry.request_as_Prefetch(), reader);
    case flat::Request::AskStats:
      return Read(*entry.request_as_AskStats(), reader);
    case flat::Request::Grow:
      return Read(*entry.request_as_Grow(), reader);
    case flat::Request::Close:
      return Read(*entry.request_as_Close(), reader);
    case flat::Request::OpenBytes:
      return Read(*entry.request_as_OpenBytes(), reader);
    case flat::Request::PushBytes:
      return Read(*entry.request_as_PushBytes(), reader);
    case flat::Request::Waiting:
      return Read(*entry.request_as_Waiting(), reader);
    case flat::Request::HoldAtMost:
      return Read(*entry.request_as_HoldAtMost(), reader);
    case flat::Request::Keep:
      return Read(*entry.request_as_Keep(), reader);
    case flat::Request::Touch:
      return Read(*entry.request_as_Touch(), reader);
    case flat::Request::Claim:
      return ReadClaim(*entry.request_as_Claim(), reader);
    case flat::Request::NONE:
      break;
  }
  return WrongMessage(absl::StrCat("has a request of the unknown kind ",
                                   static_cast<int>(entry.request_type())));
}

}  // namespace

flatbuffers::Offset<flat::JobRequests> WriteRequests(
    FlatBuilder& builder, const JobRequests& requests) {
  std::vector<flatbuffers::Offset<flat::RequestEntry>> entries;
  entries.reserve(requests.requests.size());
  for (const JobRequest& each : requests.requests) {
    const WrittenRequest written = std::visit(
        [&builder](const auto& body) { return Write(builder, body); }, each);
    entries.push_back(
        flat::CreateRequestEntry(builder, written.kind, written.table));
  }
  const auto list = builder.CreateVector(entries);
  return flat::CreateJobRequests(builder, requests.posted, list);
}

absl::StatusOr<JobRequests> ReadRequests(const flat::JobRequests& table,
                                         FlatReader& reader) {
  JobRequests requests;
  requests.posted = table.posted();
  if (table.requests() != nullptr &&
      table.requests()->size() > kMostRequestsInMessage) {
    return WrongMessage(absl::StrCat("has ", table.requests()->size(),
                                     " requests; at most ",
                                     kMostRequestsInMessage));
  }
  TERRACE_RETURN_IF_ERROR(reader.Tables(
      table.requests(), "requests",
      [&reader](const flat::RequestEntry& each) { return Read(each, reader); },
      &requests.requests));
  return requests;
}

}  // namespace terrace
