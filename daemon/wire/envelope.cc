#include "daemon/wire/envelope.h"

#include <cstring>
#include <utility>

#include "daemon/wire/tables/claim_tables.h"
#include "daemon/wire/tables/flat_tables.h"
#include "daemon/wire/tables/news_tables.h"
#include "daemon/wire/tables/request_tables.h"
#include "daemon/wire/tables/status_tables.h"

namespace terrace {
namespace {

// What an honest message comes to: each table has its own bytes.
constexpr flatbuffers::uoffset_t kMostDepth = 12;
constexpr size_t kLeastTableBytes = 8;

// One overload for each body.
using WrittenBody = FlatMember<flat::Body>;

WrittenBody Write(FlatBuilder& builder, const StatusRequest& /*request*/) {
  return {flat::Body::StatusRequest,
          flat::CreateStatusRequest(builder).Union()};
}

WrittenBody Write(FlatBuilder& builder, const DaemonStatus& status) {
  return {flat::Body::Status, WriteStatus(builder, status).Union()};
}

WrittenBody Write(FlatBuilder& builder, const Refusal& refusal) {
  const auto message = builder.CreateString(std::string(refusal.why.message()));
  return {flat::Body::Refusal,
          flat::CreateRefusal(builder, static_cast<int32_t>(refusal.why.code()),
                              message)
              .Union()};
}

WrittenBody Write(FlatBuilder& builder, const Hello& hello) {
  const auto version = builder.CreateString(hello.version);
  const auto job = builder.CreateString(hello.job);
  const auto token = WriteToken(builder, hello.token);
  return {flat::Body::Hello,
          flat::CreateHello(builder, version, job, hello.memory_bytes,
                            hello.growth_bytes,
                            static_cast<uint8_t>(hello.eviction),
                            hello.prefetch, token, hello.patience_ms)
              .Union()};
}

WrittenBody Write(FlatBuilder& builder, const Welcome& welcome) {
  const auto token = WriteToken(builder, welcome.token);
  return {flat::Body::Welcome,
          flat::CreateWelcome(builder, welcome.client, welcome.memory_bytes,
                              welcome.file_bytes, token)
              .Union()};
}

WrittenBody Write(FlatBuilder& builder, const JobRequests& requests) {
  return {flat::Body::JobRequests, WriteRequests(builder, requests).Union()};
}

WrittenBody Write(FlatBuilder& builder, const JobNews& news) {
  return {flat::Body::JobNews, WriteNews(builder, news).Union()};
}

WrittenBody Write(FlatBuilder& builder, const Fragment& fragment) {
  const auto bytes = builder.CreateVector(
      reinterpret_cast<const uint8_t*>(fragment.bytes.data()),
      fragment.bytes.size());
  return {flat::Body::Fragment,
          flat::CreateFragment(builder, bytes, fragment.left_bytes).Union()};
}

WrittenBody Write(FlatBuilder& builder, const TensorsRequest& request) {
  return {flat::Body::TensorsRequest,
          flat::CreateTensorsRequest(builder, request.session, request.after)
              .Union()};
}

WrittenBody Write(FlatBuilder& builder, const TensorsPage& page) {
  return {flat::Body::TensorsPage, WriteTensors(builder, page).Union()};
}

WrittenBody Write(FlatBuilder& builder, const DrainRequest& request) {
  return {flat::Body::DrainRequest,
          flat::CreateDrainRequest(builder, request.seconds).Union()};
}

WrittenBody Write(FlatBuilder& builder, const EvictionRequest& request) {
  const auto job = builder.CreateString(request.job);
  return {flat::Body::EvictionRequest,
          flat::CreateEvictionRequest(builder, job, request.uid,
                                      request.process, request.timeout_ms)
              .Union()};
}

WrittenBody Write(FlatBuilder& builder, const EvictionReport& report) {
  return {flat::Body::EvictionReport, WriteEviction(builder, report).Union()};
}

absl::StatusOr<Refusal> Read(const flat::Refusal& table, FlatReader& reader) {
  TERRACE_ASSIGN_OR_RETURN(const std::string message,
                           reader.Text(table.message(), "reason"));
  const int32_t code = table.code();
  const auto most = static_cast<int32_t>(absl::StatusCode::kUnauthenticated);
  if (code <= 0 || code > most) {
    return WrongMessage(absl::StrCat("refuses with the code ", code));
  }
  return Refusal{absl::Status(static_cast<absl::StatusCode>(code), message)};
}

absl::StatusOr<Hello> Read(const flat::Hello& table, FlatReader& reader) {
  Hello hello;
  TERRACE_ASSIGN_OR_RETURN(hello.version,
                           reader.Text(table.version(), "version"));
  TERRACE_ASSIGN_OR_RETURN(hello.job, reader.TextOrNone(table.job()));
  hello.memory_bytes = table.memory_bytes();
  hello.growth_bytes = table.growth_bytes();
  TERRACE_ASSIGN_OR_RETURN(
      hello.eviction,
      EnumOf(table.eviction(), EvictionKind::kNextUse, "policy"));
  hello.prefetch = table.prefetch();
  TERRACE_ASSIGN_OR_RETURN(hello.token, ReadToken(table.token()));
  hello.patience_ms = table.patience_ms();
  return hello;
}

absl::StatusOr<Welcome> Read(const flat::Welcome& table) {
  Welcome welcome{table.client(), table.memory_bytes(), table.file_bytes()};
  TERRACE_ASSIGN_OR_RETURN(welcome.token, ReadToken(table.token()));
  if (welcome.client > 0 && welcome.memory_bytes > 0 &&
      welcome.file_bytes >= welcome.memory_bytes) {
    return welcome;
  }
  return WrongMessage(absl::StrCat(
      "welcomes the client ", welcome.client, " with ", welcome.memory_bytes,
      " bytes of memory in a file of ", welcome.file_bytes));
}

absl::StatusOr<Fragment> Read(const flat::Fragment& table, FlatReader& reader) {
  std::vector<uint8_t> bytes;
  TERRACE_RETURN_IF_ERROR(reader.Numbers(table.bytes(), "piece", &bytes));
  Fragment fragment;
  const auto* const begin = reinterpret_cast<const std::byte*>(bytes.data());
  fragment.bytes.assign(begin, begin + bytes.size());
  fragment.left_bytes = table.left_bytes();
  return fragment;
}

absl::StatusOr<EvictionRequest> Read(const flat::EvictionRequest& table,
                                     FlatReader& reader) {
  EvictionRequest request;
  TERRACE_ASSIGN_OR_RETURN(request.job, reader.TextOrNone(table.job()));
  request.uid = table.uid();
  request.process = table.process();
  request.timeout_ms = table.timeout_ms();
  return request;
}

bool IsAnswer(flat::Body kind) {
  return kind == flat::Body::Status || kind == flat::Body::Refusal ||
         kind == flat::Body::Welcome || kind == flat::Body::JobNews ||
         kind == flat::Body::TensorsPage || kind == flat::Body::EvictionReport;
}

absl::StatusOr<EnvelopeBody> ReadBody(const flat::Envelope& envelope,
                                      FlatReader& reader) {
  // What the verifier knows of no member it takes for whole.
  if (envelope.body() == nullptr) return WrongMessage("has no body");
  switch (envelope.body_type()) {
    case flat::Body::StatusRequest:
      return StatusRequest();
    case flat::Body::Status:
      return ReadStatus(*envelope.body_as_Status(), reader);
    case flat::Body::Refusal:
      return Read(*envelope.body_as_Refusal(), reader);
    case flat::Body::Hello:
      return Read(*envelope.body_as_Hello(), reader);
    case flat::Body::Welcome:
      return Read(*envelope.body_as_Welcome());
    case flat::Body::JobRequests:
      return ReadRequests(*envelope.body_as_JobRequests(), reader);
    case flat::Body::JobNews:
      return ReadNews(*envelope.body_as_JobNews(), reader);
    case flat::Body::Fragment:
      return Read(*envelope.body_as_Fragment(), reader);
    case flat::Body::TensorsRequest: {
      const flat::TensorsRequest& asked = *envelope.body_as_TensorsRequest();
      return TensorsRequest{asked.session(), asked.after()};
    }
    case flat::Body::TensorsPage:
      return ReadTensors(*envelope.body_as_TensorsPage(), reader);
    case flat::Body::DrainRequest:
      return DrainRequest{envelope.body_as_DrainRequest()->seconds()};
    case flat::Body::EvictionRequest:
      return Read(*envelope.body_as_EvictionRequest(), reader);
    case flat::Body::EvictionReport:
      return ReadEviction(*envelope.body_as_EvictionReport(), reader);
    case flat::Body::NONE:
      break;
  }
  return WrongMessage(absl::StrCat("has a body of the unknown kind ",
                                   static_cast<int>(envelope.body_type())));
}

}  // namespace

struct EnvelopeWriter::Buffer {
  FlatBuilder builder;
};

EnvelopeWriter::EnvelopeWriter() : buffer_(std::make_unique<Buffer>()) {}
EnvelopeWriter::~EnvelopeWriter() = default;
EnvelopeWriter::EnvelopeWriter(EnvelopeWriter&&) noexcept = default;

absl::StatusOr<absl::Span<const std::byte>> EnvelopeWriter::Encode(
    const Envelope& envelope, size_t most_bytes) {
  FlatBuilder& builder = buffer_->builder;
  // What a long message took is not kept.
  if (builder.GetSize() > kMostPacketBytes) {
    builder.Reset();
  } else {
    builder.Clear();
  }
  const WrittenBody body = std::visit(
      [&](const auto& each) { return Write(builder, each); }, envelope.body);
  flat::FinishEnvelopeBuffer(
      builder, flat::CreateEnvelope(builder, kWireProtocol, envelope.sequence,
                                    body.kind, body.table));
  if (builder.GetSize() > most_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a control message of ", builder.GetSize(),
                     " bytes; at most ", most_bytes, " are sent"));
  }
  const auto* const begin =
      reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  return absl::Span<const std::byte>(begin, builder.GetSize());
}

absl::StatusOr<std::vector<std::byte>> Encode(const Envelope& envelope,
                                              size_t most_bytes) {
  EnvelopeWriter writer;
  TERRACE_ASSIGN_OR_RETURN(const absl::Span<const std::byte> bytes,
                           writer.Encode(envelope, most_bytes));
  return std::vector<std::byte>(bytes.begin(), bytes.end());
}

absl::StatusOr<Envelope> Decode(absl::Span<const std::byte> bytes,
                                size_t most_bytes, WireReader side) {
  Envelope envelope;
  TERRACE_RETURN_IF_ERROR(Decode(bytes, most_bytes, side, &envelope));
  return envelope;
}

absl::Status Decode(absl::Span<const std::byte> bytes, size_t most_bytes,
                    WireReader side, Envelope* envelope) {
  if (bytes.size() > most_bytes) {
    return WrongMessage(absl::StrCat("has ", bytes.size(), " bytes; at most ",
                                     most_bytes, " are read"));
  }
  // Fields are read where they lie, so that the whole begins at a multiple of
  // the largest one.
  std::vector<uint64_t> aligned;
  const auto* begin = reinterpret_cast<const uint8_t*>(bytes.data());
  if (bytes.empty() ||
      reinterpret_cast<uintptr_t>(begin) % alignof(uint64_t) != 0) {
    aligned.resize(bytes.size() / sizeof(uint64_t) + 1);
    if (!bytes.empty()) std::memcpy(aligned.data(), begin, bytes.size());
    begin = reinterpret_cast<const uint8_t*>(aligned.data());
  }
  const auto most_tables =
      static_cast<flatbuffers::uoffset_t>(bytes.size() / kLeastTableBytes + 1);
  flatbuffers::Verifier verifier(begin, bytes.size(), kMostDepth, most_tables);
  if (!flat::VerifyEnvelopeBuffer(verifier)) {
    return WrongMessage("is none: it cannot be verified");
  }
  const flat::Envelope& flat = *flat::GetEnvelope(begin);
  if (flat.protocol() != kWireProtocol) {
    return WrongMessage(absl::StrCat("speaks the protocol ", flat.protocol(),
                                     "; this is ", kWireProtocol));
  }
  envelope->sequence = flat.sequence();
  if (side == WireReader::kDaemon && IsAnswer(flat.body_type())) {
    return WrongMessage("is an answer, where a request is due");
  }
  FlatReader reader(bytes.size());
  TERRACE_ASSIGN_OR_RETURN(envelope->body, ReadBody(flat, reader));
  return absl::OkStatus();
}

}  // namespace terrace
