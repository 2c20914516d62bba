// What passes between a job's process and its runtime, as bytes and back.
#include "daemon/wire/job_messages.h"

#include <flatbuffers/flatbuffers.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/io_fault.h"
#include "daemon/wire/envelope.h"
#include "daemon/wire/fragments.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/wire/changed_bytes.h"
#include "tests/daemon/wire/some_messages.h"

namespace terrace {
namespace {

using testing::HasSubstr;

using Bytes = std::vector<std::byte>;

Bytes BytesOf(const EnvelopeBody& body) {
  absl::StatusOr<Bytes> bytes = Encode({.sequence = 77, .body = body});
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  return bytes.value_or(Bytes());
}

// Of a table, by its number.
constexpr flatbuffers::voffset_t FieldAt(int number) {
  return static_cast<flatbuffers::voffset_t>(4 + 2 * number);
}

TEST(JobMessagesTest, RequestsComeBackAsTheyWere) {
  const auto decoded = Decode(BytesOf(SomeRequests()));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  const auto& all = std::get<JobRequests>(decoded->body);
  EXPECT_EQ(all.posted, 12u);
  ASSERT_EQ(all.requests.size(), 18u);
  const auto& registered = std::get<RegisterRequest>(all.requests[0]);
  EXPECT_EQ(registered.id.number, 1u);
  ASSERT_EQ(registered.specs.size(), 2u);
  EXPECT_EQ(registered.specs[1].name, "layer");
  EXPECT_EQ(registered.specs[1].size_bytes, 4096);
  EXPECT_EQ(registered.specs[1].global_offset, 7);
  EXPECT_EQ(registered.specs[1].step_number, 3);
  EXPECT_EQ(std::get<UnregisterRequest>(all.requests[1]).tensor, TensorId{5});
  const auto& opened = std::get<OpenRequest>(all.requests[2]);
  EXPECT_EQ(opened.slot_bytes, 8192);
  EXPECT_EQ(opened.slots, 4);
  EXPECT_EQ(opened.deadline, absl::InfiniteFuture());
  EXPECT_EQ(opened.tier, "dram");
  EXPECT_EQ(std::get<CloseQueueRequest>(all.requests[3]).queue, 9);
  const auto& pushed = std::get<PushRequest>(all.requests[4]);
  EXPECT_EQ(pushed.tag, 44u);
  ASSERT_EQ(pushed.wants.size(), 2u);
  EXPECT_EQ(pushed.wants[0].access, Access::kUpdate);
  EXPECT_EQ(static_cast<int>(pushed.wants[1].access), 200);  // to be refused
  EXPECT_EQ(pushed.deadline, absl::UnixEpoch() + absl::Nanoseconds(5));
  EXPECT_EQ(std::get<EndPinRequest>(all.requests[5]).token, ~uint64_t{0});
  EXPECT_EQ(std::get<EndPinRequest>(all.requests[5]).end, PinEnd::kDiscard);
  EXPECT_EQ(std::get<StepRequest>(all.requests[6]).step, 17);
  EXPECT_EQ(std::get<StepRequest>(all.requests[6]).kind,
            StepRequest::Kind::kCommit);
  EXPECT_EQ(std::get<PrefetchRequest>(all.requests[7]).tensors.size(), 2u);
  EXPECT_EQ(std::get<StatsRequest>(all.requests[8]).id.number, 5u);
  EXPECT_EQ(std::get<GrowRequest>(all.requests[9]).bytes, 1 << 20);
  EXPECT_EQ(std::get<CloseRequest>(all.requests[10]).deadline,
            absl::InfinitePast());
  EXPECT_TRUE(std::get<CloseRequest>(all.requests[10]).force);
}

TEST(JobMessagesTest, RequestsOfBytesComeBackAsTheyWere) {
  const auto decoded = Decode(BytesOf(SomeRequests()));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  const auto& all = std::get<JobRequests>(decoded->body);
  ASSERT_EQ(all.requests.size(), 18u);
  const auto& bytes = std::get<OpenBytesRequest>(all.requests[11]);
  EXPECT_EQ(bytes.id.number, 8u);
  EXPECT_EQ(bytes.window_bytes, 1 << 20);
  EXPECT_EQ(bytes.tier, "dram");
  const auto& asked = std::get<PushBytesRequest>(all.requests[12]);
  EXPECT_EQ(asked.queue, 10);
  EXPECT_EQ(asked.wants.at(0).access, Access::kOverwrite);
  EXPECT_EQ(asked.in_use, (std::vector<uint64_t>{3, ~uint64_t{0}}));
  EXPECT_EQ(asked.lane, 2);
  EXPECT_EQ(asked.tag, 45u);
  EXPECT_EQ(asked.deadline, absl::InfiniteFuture());
  const auto& waiting = std::get<WaitingRequest>(all.requests[13]);
  EXPECT_EQ(waiting.queue, 10);
  EXPECT_EQ(waiting.in_use, std::vector<uint64_t>{3});
  EXPECT_TRUE(waiting.begins);
  EXPECT_EQ(std::get<HoldAtMostRequest>(all.requests[14]).bytes, 4096);
  EXPECT_EQ(std::get<KeepRequest>(all.requests[15]).token, 8u);
  const auto& touched = std::get<TouchRequest>(all.requests[16]);
  EXPECT_EQ(touched.queue, 10);
  EXPECT_EQ(touched.tensors, (std::vector<TensorId>{{7}, {8}}));
  EXPECT_EQ(touched.lane, 1);
}

TEST(JobMessagesTest, AClaimComesBackAsItWas) {
  const auto decoded = Decode(BytesOf(SomeRequests()));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  const auto& claim = std::get<ClaimRequest>(
      std::get<JobRequests>(decoded->body).requests.at(17));
  EXPECT_EQ(claim.memory_bytes, 1 << 20);
  ASSERT_EQ(claim.queues.size(), 2u);
  EXPECT_EQ(claim.queues[0].queue, 9);
  EXPECT_EQ(claim.queues[0].step, std::optional<int64_t>(17));
  EXPECT_EQ(claim.queues[0].hold_at_most, 4096);
  EXPECT_EQ(claim.queues[1].queue, 10);
  EXPECT_FALSE(claim.queues[1].step.has_value());
  EXPECT_EQ(claim.queues[1].hold_at_most, -1);
  EXPECT_EQ(claim.pins, (std::vector<uint64_t>{3, ~uint64_t{0}}));
  EXPECT_EQ(claim.recalled, std::vector<uint64_t>{3});
  EXPECT_EQ(claim.kept, std::vector<uint64_t>{4});
  EXPECT_EQ(claim.known, (std::vector<TensorRange>{{0, 3}, {7, 9}}));
  EXPECT_EQ(claim.unregistering, std::vector<TensorId>{{5}});
}

TEST(JobMessagesTest, ATokenComesBackAsItWasAndNoneAsNone) {
  JobToken token{};
  for (size_t i = 0; i < token.size(); ++i) token[i] = std::byte(i + 1);
  for (const JobToken& each : {token, JobToken{}}) {
    const auto hello = Decode(BytesOf(Hello{.version = "1", .token = each}));
    ASSERT_TRUE(hello.ok()) << hello.status();
    EXPECT_EQ(std::get<Hello>(hello->body).token, each);
    const auto welcome = Decode(BytesOf(Welcome{1, 4096, 8192, each}));
    ASSERT_TRUE(welcome.ok()) << welcome.status();
    EXPECT_EQ(std::get<Welcome>(welcome->body).token, each);
  }
}

TEST(JobMessagesTest, NewsComeBackAsTheyWere) {
  const auto decoded = Decode(BytesOf(SomeNews()));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(std::get<JobNews>(decoded->body).processed, 13u);
  const auto& all = std::get<JobNews>(decoded->body).entries;
  ASSERT_EQ(all.size(), 9u);
  EXPECT_EQ(
      std::get<std::vector<TensorId>>(std::get<AnswerNews>(all[0]).answer),
      (std::vector<TensorId>{{4}, {5}}));
  EXPECT_TRUE(std::get<absl::Status>(std::get<AnswerNews>(all[1]).answer).ok());
  EXPECT_EQ(std::get<OpenedQueue>(std::get<AnswerNews>(all[2]).answer).tier,
            kDramTier);
  for (const Stats& stats :
       {std::get<Stats>(std::get<AnswerNews>(all[3]).answer),
        std::get<LastStats>(all[7]).stats}) {
    EXPECT_EQ(stats.engine, "io_uring");
    EXPECT_EQ(stats.hits, 3);
    EXPECT_EQ(stats.first_error, absl::DataLossError("first"));
    const TierStats& tier = stats.tiers.at(0);
    EXPECT_EQ(tier.kind, TierKind::kDisk);
    EXPECT_EQ(tier.state, TierState::kSlow);
    EXPECT_EQ(IoFaultOf(tier.write_error).path, "/a/file");
    EXPECT_EQ(IoFaultOf(tier.write_error).offset, 4096);
    EXPECT_EQ(tier.traffic.read_bytes_per_second, 1.5);
    EXPECT_EQ(tier.disk.jobs_elsewhere.at(1), "two");
    EXPECT_EQ(stats.links.at(0).bytes, 8);
    EXPECT_EQ(stats.host.huge_page_share, 0.25);
    EXPECT_EQ(stats.bytes.promised_bytes, 1);
    EXPECT_EQ(stats.bytes.beyond_peak_bytes, 6);
  }
  const auto& ready = std::get<QueueNews>(all[4]);
  ASSERT_EQ(ready.groups.size(), 2u);
  EXPECT_EQ(ready.groups[0].grants->front().offset, 4096);
  EXPECT_EQ(ready.groups[0].cause, WaitCause::kRead);
  EXPECT_TRUE(absl::IsResourceExhausted(ready.groups[1].grants.status()));
  EXPECT_TRUE(ready.blocked_by_own_pins);
  EXPECT_EQ(ready.processed, 11u);
  EXPECT_EQ(ready.blocked_also, absl::AbortedError("also"));
  EXPECT_EQ(std::get<QueueClosed>(all[5]).queue, 9);
  EXPECT_EQ(std::get<QueueGone>(all[6]).queue, 10);
  const auto& recalled = std::get<BytesNews>(all[8]);
  EXPECT_EQ(recalled.queue, 10);
  ASSERT_EQ(recalled.groups.size(), 2u);
  EXPECT_EQ(recalled.groups[0].grants->front().offset, 1 << 30);
  EXPECT_EQ(recalled.groups[0].beyond_bytes, 8192);
  EXPECT_EQ(recalled.groups[0].recalls, (std::vector<uint64_t>{3, 4}));
  EXPECT_TRUE(absl::IsDataLoss(recalled.groups[1].grants.status()));
  EXPECT_EQ(recalled.recalls, std::vector<uint64_t>{5});
}

// A list of tensors whose names are all the same bytes: a thousand copies of
// them would be a hundred times the message.
TEST(JobMessagesTest, BytesThatAreNamedRepeatedlyAreRefused) {
  flatbuffers::FlatBufferBuilder builder;
  const auto name = builder.CreateString(std::string(50000, 'n'));
  std::vector<flatbuffers::Offset<void>> specs;
  for (int i = 0; i < 1000; ++i) {
    const auto begin = builder.StartTable();
    builder.AddOffset(FieldAt(0), name);
    specs.emplace_back(builder.EndTable(begin));
  }
  const auto list = builder.CreateVector(specs);
  auto begin = builder.StartTable();
  builder.AddOffset(FieldAt(1), list);
  const flatbuffers::Offset<void> registered(builder.EndTable(begin));
  begin = builder.StartTable();
  builder.AddElement<uint8_t>(FieldAt(0), 1, 0);
  builder.AddOffset(FieldAt(1), registered);
  const std::vector<flatbuffers::Offset<void>> entry = {
      flatbuffers::Offset<void>(builder.EndTable(begin))};
  const auto entries = builder.CreateVector(entry);
  begin = builder.StartTable();
  builder.AddOffset(FieldAt(1), entries);
  const auto requests = builder.EndTable(begin);
  begin = builder.StartTable();
  builder.AddElement<uint16_t>(FieldAt(0), 1, 0);
  builder.AddElement<uint8_t>(FieldAt(2), 6, 0);
  builder.AddOffset(FieldAt(3), flatbuffers::Offset<void>(requests));
  builder.Finish(flatbuffers::Offset<void>(builder.EndTable(begin)), "TRC1");
  const auto* const data =
      reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  const Bytes bytes(data, data + builder.GetSize());
  ASSERT_LE(bytes.size(), kMostMessageBytes);
  const absl::Status refused = Decode(bytes, kMostMessageBytes).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("repeatedly"));
}

TEST(FragmentsTest, ALongMessageComesInPacketsAndIsWholeAgain) {
  for (const size_t count : {0, 1, 3000, 100000}) {
    RegisterRequest request{{.number = 5}, {}};
    for (size_t i = 0; i < count; ++i) {
      TensorSpec& spec = request.specs.emplace_back();
      spec.name = std::to_string(i);
      spec.size_bytes = static_cast<int64_t>(i) + 1;
    }
    const auto packets =
        PacketsOf({.sequence = 3, .body = JobRequests{.requests = {request}}});
    ASSERT_TRUE(packets.ok()) << packets.status();
    EXPECT_EQ(packets->size() == 1, count < 3000) << packets->size();
    FragmentReader reader(WireReader::kDaemon);
    Envelope whole;
    bool is_whole = false;
    for (const Bytes& packet : *packets) {
      EXPECT_LE(packet.size(), kMostPacketBytes);
      ASSERT_FALSE(is_whole);
      const absl::StatusOr<bool> added = reader.Add(packet, &whole);
      ASSERT_TRUE(added.ok()) << added.status();
      is_whole = *added;
    }
    ASSERT_TRUE(is_whole);
    EXPECT_EQ(whole.sequence, 3u);
    const auto& all = std::get<JobRequests>(whole.body).requests;
    const auto& specs = std::get<RegisterRequest>(all.at(0)).specs;
    ASSERT_EQ(specs.size(), count);
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(specs[i].name, std::to_string(i));
    }
  }
}

// Nothing of it is longer than it must be, and none of it is taken for what
// names its bytes repeatedly.
TEST(JobMessagesTest, AsMuchAsAMessageHasIsRead) {
  JobNews news;
  news.entries.assign(4096, QueueGone{1});
  const auto read =
      Decode(*Encode({.body = news}, kMostMessageBytes), kMostMessageBytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(std::get<JobNews>(read->body).entries.size(), 4096u);
  JobRequests requests;
  requests.requests.assign(kMostRequestsInMessage, CloseQueueRequest{1});
  EXPECT_TRUE(
      Decode(*Encode({.body = requests}, kMostMessageBytes), kMostMessageBytes)
          .ok());
}

TEST(JobMessagesTest, MoreRequestsThanAMessageHasAreRefused) {
  JobRequests requests;
  requests.requests.assign(kMostRequestsInMessage, StatsRequest{{.number = 1}});
  const auto size = [&requests] {
    return Decode(*Encode({.body = requests}, kMostMessageBytes),
                  kMostMessageBytes)
        .status();
  };
  EXPECT_TRUE(size().ok()) << size();
  requests.requests.push_back(StatsRequest());
  EXPECT_TRUE(absl::IsInvalidArgument(size())) << size();
}

TEST(FragmentsTest, AMessageThatIsTooLongIsNotMade) {
  JobRequests requests;
  TensorSpec spec;
  spec.name.assign(kMostMessageBytes, 'x');
  requests.requests.push_back(RegisterRequest{{.number = 1}, {spec}});
  const absl::Status refused = PacketsOf({.body = requests}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
}

TEST(JobMessagesTest, BytesThatWereChangedAreReadOrRefused) {
  const std::vector<Bytes> messages = {
      BytesOf(SomeRequests()), BytesOf(SomeNews()),
      BytesOf(Hello{.version = "1", .job = "night"}),
      BytesOf(Welcome{1, 4096, 8192}), BytesOf(Fragment{Bytes(20), 5})};
  ExpectTruncatedAreNone(messages);
  ExpectChangedAreReadOrRefused(messages);
}

}  // namespace
}  // namespace terrace
