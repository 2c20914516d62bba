// Control messages against FlatBuffers' own builder, and whatever bytes may
// come.
#include "daemon/wire/envelope.h"

#include <flatbuffers/flatbuffers.h>

#include <cstring>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/wire/fragments.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/wire/changed_bytes.h"

namespace terrace {
namespace {

using testing::HasSubstr;

using Bytes = std::vector<std::byte>;

DaemonStatus AStatus() {
  return {
      .version = "1.2.3",
      .pid = 4711,
      .phase = "serving",
      .silent_for_ms = 12,
      .tiers = {{"dram", int64_t{1} << 40, 3, ""}, {"nvme:/a", 5, 4, "EIO"}},
      .users = {{1000, 2, 0}, {1001, 3, 16}},
      .jobs = {{1001,
                "night",
                2,
                {{"dram", 4096}, {"nvme:/a", 5, 1, 2, 3}},
                6,
                7,
                0.5}},
      .loops = 9,
      .stopped = {{"mover of process 8", 8, 1500}}};
}

Bytes Encoded(const EnvelopeBody& body) {
  absl::StatusOr<Bytes> bytes = Encode({.sequence = 77, .body = body});
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  return bytes.value_or(Bytes());
}

std::string Fault(const Bytes& bytes) {
  const absl::StatusOr<Envelope> decoded = Decode(bytes);
  EXPECT_TRUE(absl::IsInvalidArgument(decoded.status())) << decoded.status();
  return std::string(decoded.status().message());
}

// A table of the protocol by the numbers of its fields, as a stranger may write
// it.
class Raw {
 public:
  static constexpr flatbuffers::voffset_t FieldAt(int number) {
    return static_cast<flatbuffers::voffset_t>(4 + 2 * number);
  }

  // `write_body` returns the body's offset, 0: none.
  template <typename Write>
  static Bytes EnvelopeOf(uint16_t protocol, uint8_t kind,
                          const Write& write_body,
                          const char* identifier = "TRC1") {
    flatbuffers::FlatBufferBuilder builder;
    const flatbuffers::uoffset_t body = write_body(builder);
    const flatbuffers::uoffset_t begin = builder.StartTable();
    builder.AddElement<uint16_t>(FieldAt(0), protocol, 0);
    builder.AddElement<uint64_t>(FieldAt(1), 5, 0);
    builder.AddElement<uint8_t>(FieldAt(2), kind, 0);
    if (body != 0) {
      builder.AddOffset(FieldAt(3), flatbuffers::Offset<void>(body));
    }
    builder.Finish(flatbuffers::Offset<void>(builder.EndTable(begin)),
                   identifier);
    const auto* const data =
        reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
    return {data, data + builder.GetSize()};
  }
  static flatbuffers::uoffset_t EmptyTable(
      flatbuffers::FlatBufferBuilder& builder) {
    return builder.EndTable(builder.StartTable());
  }
};

TEST(EnvelopeTest, APageOfTensorsComesBackAsItWas) {
  TensorsPage page{.uid = 7,
                   .job = "night",
                   .process = 4711,
                   .fault = "late",
                   .next_session = 3,
                   .next_after = 99};
  for (int i = 0; i < 128; ++i) {  // the most that a page has
    page.tensors.push_back({TensorId{i}, std::string(255, 'x'), i + 1, "dram",
                            TensorState::kLost});
  }
  const absl::StatusOr<Envelope> back = Decode(Encoded(page));
  ASSERT_TRUE(back.ok()) << back.status();
  const auto& read = std::get<TensorsPage>(back->body);
  EXPECT_EQ(read.uid, 7u);
  EXPECT_EQ(read.job, "night");
  EXPECT_EQ(read.process, 4711);
  EXPECT_EQ(read.fault, "late");
  EXPECT_EQ(read.next_session, 3);
  EXPECT_EQ(read.next_after, 99);
  ASSERT_EQ(read.tensors.size(), 128u);
  EXPECT_EQ(read.tensors[127].id, TensorId{127});
  EXPECT_EQ(read.tensors[127].name, std::string(255, 'x'));
  EXPECT_EQ(read.tensors[127].size_bytes, 128);
  EXPECT_EQ(read.tensors[127].tier, "dram");
  EXPECT_EQ(read.tensors[127].state, TensorState::kLost);
  page.tensors[0].state = static_cast<TensorState>(9);
  EXPECT_THAT(Fault(Encoded(page)), HasSubstr("tensor's state"));
  const auto asked = Decode(Encoded(TensorsRequest{5, 6}), kMostPacketBytes,
                            WireReader::kDaemon);
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_EQ(std::get<TensorsRequest>(asked->body).session, 5);
  EXPECT_EQ(std::get<TensorsRequest>(asked->body).after, 6);
  const auto drain =
      Decode(Encoded(DrainRequest{8}), kMostPacketBytes, WireReader::kDaemon);
  ASSERT_TRUE(drain.ok()) << drain.status();
  EXPECT_EQ(std::get<DrainRequest>(drain->body).seconds, 8);
}

TEST(EnvelopeTest, WhatWasEvictedComesBackAsItWas) {
  EvictionReport report{.uid = 7, .job = "night"};
  report.processes.push_back({.process = 4711,
                              .evicted = {.gone = {1, 2},
                                          .pinned = {3, 4},
                                          .moving = {5, 6},
                                          .wanted = {7, 8},
                                          .in_windows = {9, 10},
                                          .unwritten = {11, 12}}});
  report.processes.push_back({.process = 4712, .fault = "gone"});
  const absl::StatusOr<Envelope> back = Decode(Encoded(report));
  ASSERT_TRUE(back.ok()) << back.status();
  const auto& read = std::get<EvictionReport>(back->body);
  EXPECT_EQ(read.uid, 7u);
  EXPECT_EQ(read.job, "night");
  ASSERT_EQ(read.processes.size(), 2u);
  const Evicted& evicted = read.processes[0].evicted;
  const std::vector<Evicted::Part> parts = {
      evicted.gone,   evicted.pinned,     evicted.moving,
      evicted.wanted, evicted.in_windows, evicted.unwritten};
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(parts[i].tensors, static_cast<int64_t>(2 * i + 1));
    EXPECT_EQ(parts[i].bytes, static_cast<int64_t>(2 * i + 2));
  }
  EXPECT_EQ(read.processes[0].process, 4711);
  EXPECT_EQ(read.processes[0].fault, "");
  EXPECT_EQ(read.processes[1].fault, "gone");
  report.processes[0].evicted.wanted.bytes = -1;
  EXPECT_THAT(Fault(Encoded(report)), HasSubstr("less than no bytes"));
  const auto asked = Decode(Encoded(EvictionRequest{"day", 5, 6, 7}),
                            kMostPacketBytes, WireReader::kDaemon);
  ASSERT_TRUE(asked.ok()) << asked.status();
  const auto& request = std::get<EvictionRequest>(asked->body);
  EXPECT_EQ(request.job, "day");
  EXPECT_EQ(request.uid, 5);
  EXPECT_EQ(request.process, 6);
  EXPECT_EQ(request.timeout_ms, 7);
  const auto answer =
      Decode(Encoded(report), kMostPacketBytes, WireReader::kDaemon);
  EXPECT_TRUE(absl::IsInvalidArgument(answer.status())) << answer.status();
}

// Thousands of jobs, of which a packet has some hundred.
TEST(EnvelopeTest, ALongStatusComesInPieces) {
  DaemonStatus status = AStatus();
  status.jobs.resize(3000, status.jobs.at(0));
  for (size_t i = 0; i < status.jobs.size(); ++i) {
    status.jobs[i].name = absl::StrCat("job ", i);
    status.jobs[i].bytes_up = static_cast<int64_t>(i);
  }
  const auto packets = PacketsOf({.sequence = 8, .body = status});
  ASSERT_TRUE(packets.ok()) << packets.status();
  EXPECT_GT(packets->size(), 5u);
  FragmentReader reader;
  Envelope whole;
  bool is_whole = false;
  for (const auto& packet : *packets) {
    EXPECT_FALSE(is_whole);
    const absl::StatusOr<bool> read = reader.Add(packet, &whole);
    ASSERT_TRUE(read.ok()) << read.status();
    is_whole = *read;
  }
  ASSERT_TRUE(is_whole);
  EXPECT_EQ(whole.sequence, 8u);
  const auto& back = std::get<DaemonStatus>(whole.body);
  ASSERT_EQ(back.jobs.size(), 3000u);
  EXPECT_EQ(back.jobs[2999].name, "job 2999");
  EXPECT_EQ(back.jobs[2999].bytes_up, 2999);
  EXPECT_EQ(back.stopped.size(), status.stopped.size());
}

// A user's own names may have a zero among them.
TEST(EnvelopeTest, ATextComesBackWithAllItsBytes) {
  const std::string text("a\0b", 3);
  const auto page =
      Decode(Encoded(TensorsPage{.job = text,
                                 .tensors = {{TensorId{1}, text, 1, text, {}}},
                                 .fault = text}));
  ASSERT_TRUE(page.ok()) << page.status();
  const auto& read = std::get<TensorsPage>(page->body);
  EXPECT_EQ(read.job, text);
  EXPECT_EQ(read.tensors.at(0).name, text);
  EXPECT_EQ(read.tensors.at(0).tier, text);
  EXPECT_EQ(read.fault, text);
  const auto answer =
      Decode(Encoded(DaemonStatus{.version = text,
                                  .phase = text,
                                  .tiers = {{text, 1, 1, text}},
                                  .jobs = {{1, text, 1, {{text, 1}}}},
                                  .stopped = {{text, 1, 1}}}));
  ASSERT_TRUE(answer.ok()) << answer.status();
  const auto& status = std::get<DaemonStatus>(answer->body);
  EXPECT_EQ(status.version, text);
  EXPECT_EQ(status.phase, text);
  EXPECT_EQ(status.tiers.at(0).name, text);
  EXPECT_EQ(status.tiers.at(0).fault, text);
  EXPECT_EQ(status.jobs.at(0).name, text);
  EXPECT_EQ(status.jobs.at(0).tiers.at(0).name, text);
  EXPECT_EQ(status.stopped.at(0).name, text);
  const auto refusal = Decode(Encoded(Refusal{absl::AbortedError(text)}));
  ASSERT_TRUE(refusal.ok()) << refusal.status();
  EXPECT_EQ(std::get<Refusal>(refusal->body).why, absl::AbortedError(text));
}

TEST(EnvelopeTest, EachKindComesBackAsItWas) {
  const absl::StatusOr<Envelope> request = Decode(Encoded(StatusRequest()));
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->sequence, 77u);
  EXPECT_TRUE(std::holds_alternative<StatusRequest>(request->body));

  const absl::StatusOr<Envelope> answer = Decode(Encoded(AStatus()));
  ASSERT_TRUE(answer.ok()) << answer.status();
  const auto& status = std::get<DaemonStatus>(answer->body);
  EXPECT_EQ(status.version, "1.2.3");
  EXPECT_EQ(status.pid, 4711);
  EXPECT_EQ(status.phase, "serving");
  EXPECT_EQ(status.silent_for_ms, 12);
  ASSERT_EQ(status.tiers.size(), 2u);
  EXPECT_EQ(status.tiers[0].budget_bytes, int64_t{1} << 40);
  EXPECT_EQ(status.tiers[0].fault, "");
  EXPECT_EQ(status.tiers[1].name, "nvme:/a");
  EXPECT_EQ(status.tiers[1].used_bytes, 4);
  EXPECT_EQ(status.tiers[1].fault, "EIO");
  ASSERT_EQ(status.users.size(), 2u);
  EXPECT_EQ(status.users[1].uid, 1001u);
  EXPECT_EQ(status.users[1].connections, 3);
  EXPECT_EQ(status.users[1].connection_limit, 16);
  ASSERT_EQ(status.jobs.size(), 1u);
  EXPECT_EQ(status.jobs[0].uid, 1001u);
  EXPECT_EQ(status.jobs[0].name, "night");
  EXPECT_EQ(status.jobs[0].processes, 2);
  ASSERT_EQ(status.jobs[0].tiers.size(), 2u);
  EXPECT_EQ(status.jobs[0].tiers[1].name, "nvme:/a");
  EXPECT_EQ(status.jobs[0].tiers[1].used_bytes, 5);
  EXPECT_EQ(status.jobs[0].tiers[1].pinned_bytes, 1);
  EXPECT_EQ(status.jobs[0].tiers[1].dirty_bytes, 2);
  EXPECT_EQ(status.jobs[0].tiers[1].clean_bytes, 3);
  EXPECT_EQ(status.jobs[0].bytes_up, 6);
  EXPECT_EQ(status.jobs[0].bytes_down, 7);
  EXPECT_EQ(status.jobs[0].stalled_seconds, 0.5);
  EXPECT_EQ(status.loops, 9);
  ASSERT_EQ(status.stopped.size(), 1u);
  EXPECT_EQ(status.stopped[0].name, "mover of process 8");
  EXPECT_EQ(status.stopped[0].process, 8);
  EXPECT_EQ(status.stopped[0].silent_for_ms, 1500);

  const absl::StatusOr<Envelope> refusal =
      Decode(Encoded(Refusal{absl::ResourceExhaustedError("no more")}));
  ASSERT_TRUE(refusal.ok()) << refusal.status();
  EXPECT_EQ(std::get<Refusal>(refusal->body).why,
            absl::ResourceExhaustedError("no more"));
}

TEST(EnvelopeTest, ALargerOneThanAPacketIsNotMade) {
  DaemonStatus status = AStatus();
  status.phase.assign(kMostPacketBytes, 'x');
  const absl::Status refused = Encode({.sequence = 1, .body = status}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("at most 65536"));
}

TEST(EnvelopeTest, NoneOrTooManyBytesAreNone) {
  EXPECT_THAT(Fault({}), HasSubstr("cannot be verified"));
  EXPECT_THAT(Fault(Bytes(kMostPacketBytes + 1)), HasSubstr("65537 bytes"));
}

TEST(EnvelopeTest, AnotherFileOrProtocolIsNamed) {
  EXPECT_THAT(Fault(Raw::EnvelopeOf(1, 1, Raw::EmptyTable, "ELSE")),
              HasSubstr("cannot be verified"));
  EXPECT_THAT(Fault(Raw::EnvelopeOf(2, 1, Raw::EmptyTable)),
              HasSubstr("speaks the protocol 2; this is 1"));
}

// The verifier passes these.
TEST(EnvelopeTest, AnAbsentOrUnknownBodyIsNone) {
  const auto none = [](flatbuffers::FlatBufferBuilder&) { return 0u; };
  EXPECT_THAT(Fault(Raw::EnvelopeOf(1, 0, none)), HasSubstr("has no body"));
  EXPECT_THAT(Fault(Raw::EnvelopeOf(1, 1, none)), HasSubstr("has no body"));
  EXPECT_THAT(Fault(Raw::EnvelopeOf(1, 200, Raw::EmptyTable)),
              HasSubstr("unknown kind 200"));
  EXPECT_TRUE(Decode(Raw::EnvelopeOf(1, 1, Raw::EmptyTable)).ok());
}

TEST(EnvelopeTest, AnAbsentFieldIsNamed) {
  EXPECT_THAT(Fault(Raw::EnvelopeOf(1, 2, Raw::EmptyTable)),
              HasSubstr("has no version"));
  EXPECT_THAT(Fault(Raw::EnvelopeOf(1, 3, Raw::EmptyTable)),
              HasSubstr("has no reason"));
}

TEST(EnvelopeTest, NumbersBeyondTheirRangeAreNamed) {
  DaemonStatus status = AStatus();
  status.silent_for_ms = -1;
  EXPECT_THAT(Fault(Encoded(status)), HasSubstr("ends before it begins"));
  status = AStatus();
  status.tiers[0].used_bytes = -1;
  EXPECT_THAT(Fault(Encoded(status)), HasSubstr("less than no bytes"));
  status = AStatus();
  status.users[0].connections = -1;
  EXPECT_THAT(Fault(Encoded(status)), HasSubstr("less than no connections"));
  // OK is no refusal.
  EXPECT_THAT(Fault(Encoded(Refusal{absl::OkStatus()})),
              HasSubstr("refuses with the code 0"));
}

std::vector<Bytes> OfEachKind() {
  return {Encoded(StatusRequest()), Encoded(AStatus()),
          Encoded(Refusal{absl::InternalError("a reason of some length")})};
}

TEST(EnvelopeTest, EachTruncatedOneIsNone) {
  ExpectTruncatedAreNone(OfEachKind());
}

TEST(EnvelopeTest, BytesThatWereChangedAreReadOrRefused) {
  ExpectChangedAreReadOrRefused(OfEachKind());
}

}  // namespace
}  // namespace terrace
