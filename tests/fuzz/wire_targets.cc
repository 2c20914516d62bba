#include "tests/fuzz/wire_targets.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "daemon/metrics/http_request.h"
#include "daemon/wire/envelope.h"
#include "daemon/wire/fragments.h"
#include "tests/daemon/wire/some_messages.h"

namespace terrace {
namespace {

using Bytes = std::vector<std::byte>;
using Input = std::vector<uint8_t>;

absl::Span<const std::byte> BytesOf(absl::Span<const uint8_t> input) {
  return {reinterpret_cast<const std::byte*>(input.data()), input.size()};
}

Input InputOf(const Bytes& bytes) {
  Input input(bytes.size());
  std::memcpy(input.data(), bytes.data(), bytes.size());
  return input;
}

// Why a message was refused is said, and is its sender's fault.
std::string FaultOf(const absl::Status& refused) {
  if (absl::IsInvalidArgument(refused) && !refused.message().empty()) return "";
  return absl::StrCat("refused by ", refused.ToString());
}

// What was read says all of itself again, in bytes that are read as the same,
// and is no longer than some multiple of what it came in.
std::string FaultOf(const Envelope& read, size_t size) {
  const auto once = Encode(read, kMostMessageBytes);
  if (!once.ok())
    return absl::StrCat("not written: ", once.status().ToString());
  constexpr size_t kMostLonger = 32;
  if (once->size() > kMostLonger * size + 1024) {
    return absl::StrCat(size, " bytes became ", once->size());
  }
  const auto again = Decode(*once, kMostMessageBytes);
  if (!again.ok()) return absl::StrCat("unread: ", again.status().ToString());
  if (again->sequence != read.sequence) return "another sequence";
  if (again->body.index() != read.body.index()) return "another body";
  const auto twice = Encode(*again, kMostMessageBytes);
  return twice.ok() && *twice == *once ? "" : "written twice it differs";
}

WireResult RunEnvelope(absl::Span<const uint8_t> input, WireReader reader) {
  const auto read = Decode(BytesOf(input), kMostPacketBytes, reader);
  if (!read.ok()) return {FaultOf(read.status())};
  return {FaultOf(*read, input.size()), true};
}

WireResult RunAsDaemon(absl::Span<const uint8_t> input) {
  return RunEnvelope(input, WireReader::kDaemon);
}
WireResult RunAsClient(absl::Span<const uint8_t> input) {
  return RunEnvelope(input, WireReader::kClient);
}

// Packets, each behind its length in two bytes, until one ends the connection.
WireResult RunFragments(absl::Span<const uint8_t> input) {
  FragmentReader reader(WireReader::kDaemon);
  WireResult result;
  const size_t size = input.size();
  while (input.size() >= 2) {
    const size_t length =
        std::min<size_t>(input[0] + 256 * input[1], input.size() - 2);
    Envelope message;
    const absl::StatusOr<bool> is_whole =
        reader.Add(BytesOf(input.subspan(2, length)), &message);
    input.remove_prefix(2 + length);
    if (!is_whole.ok()) {
      result.problem = FaultOf(is_whole.status());
      return result;
    }
    if (!*is_whole) continue;
    if (std::holds_alternative<Fragment>(message.body)) {
      result.problem = "a fragment is no message";
      return result;
    }
    result.was_read = true;
    result.problem = FaultOf(message, size);
    if (!result.problem.empty()) return result;
  }
  return result;
}

bool IsWithin(absl::string_view part, absl::string_view all) {
  return part.empty() || (part.data() >= all.data() &&
                          part.data() + part.size() <= all.data() + all.size());
}

// A head that comes byte by byte is partial until it is wrong or whole, and is
// then the same however much follows it.
WireResult RunHttp(absl::Span<const uint8_t> input) {
  constexpr size_t kLongest = 2048;  // each beginning of it is read
  const absl::string_view all(reinterpret_cast<const char*>(input.data()),
                              std::min(input.size(), kLongest));
  HttpRequest request;
  const HttpHead head = ReadHttpHead(all, &request);
  WireResult result;
  result.was_read = head == HttpHead::kWhole;
  if (result.was_read) {
    if (!IsWithin(request.method, all) || !IsWithin(request.path, all) ||
        !IsWithin(request.host, all)) {
      result.problem = "a part beyond the bytes";
    }
    IsLoopbackHost(request.host);
  }
  for (size_t size = 0; size < all.size(); ++size) {
    HttpRequest part;
    const HttpHead of_part = ReadHttpHead(all.substr(0, size), &part);
    if (of_part == HttpHead::kPartial) continue;
    // What comes after a whole head, or a wrong one, cannot change it.
    if (of_part != head || part.method != request.method ||
        part.path != request.path || part.host != request.host) {
      result.problem = absl::StrCat("another head by its first ", size);
    }
    break;
  }
  return result;
}

Input Encoded(EnvelopeBody body) {
  return InputOf(*Encode({.sequence = 7, .body = std::move(body)}));
}

std::vector<Input> DaemonSeeds() {
  std::vector<Input> seeds = {
      Encoded(StatusRequest()),
      Encoded(TensorsRequest{3, 17}),
      Encoded(DrainRequest{20}),
      Encoded(Hello{.version = "1.2.3", .job = "night", .memory_bytes = 4096}),
      Encoded(Hello{.version = "1.2.3", .token = {std::byte{7}}}),
      Encoded(SomeRequests()),
      Encoded(Fragment{Bytes(40), 17})};
  const JobRequests all = SomeRequests();
  for (const JobRequest& each : all.requests) {
    JobRequests one;
    one.requests.push_back(each);
    seeds.push_back(Encoded(std::move(one)));
  }
  return seeds;
}

std::vector<Input> ClientSeeds() {
  std::vector<Input> seeds = DaemonSeeds();
  seeds.push_back(Encoded(
      DaemonStatus{.version = "1.2.3",
                   .pid = 4711,
                   .phase = "serving",
                   .tiers = {{"dram", int64_t{1} << 40, 3, "EIO"}},
                   .users = {{1000, 2, 0}},
                   .jobs = {{1001, "night", 2, {{"dram", 5, 1, 2, 3}}, 6, 7}},
                   .loops = 9,
                   .stopped = {{"mover of process 8", 8, 1500}}}));
  seeds.push_back(Encoded(TensorsPage{.uid = 3,
                                      .job = "night",
                                      .process = 8,
                                      .tensors = {{}, {}},
                                      .fault = "late"}));
  seeds.push_back(Encoded(Refusal{absl::ResourceExhaustedError("no room")}));
  seeds.push_back(Encoded(Welcome{1, 4096, 8192}));
  const JobNews all = SomeNews();
  seeds.push_back(Encoded(all));
  for (const JobNewsEntry& each : all.entries) {
    JobNews one;
    one.entries.push_back(each);
    seeds.push_back(Encoded(std::move(one)));
  }
  return seeds;
}

std::vector<Input> FragmentSeeds() {
  JobRequests large = SomeRequests();
  std::get<RegisterRequest>(large.requests[0])
      .specs[0]
      .name.assign(70'000, 'n');
  std::vector<Input> seeds;
  for (const JobRequests& each : {SomeRequests(), large}) {
    Input& seed = seeds.emplace_back();
    const std::vector<Bytes> packets = *PacketsOf({.body = each});
    for (const Bytes& packet : packets) {
      seed.push_back(static_cast<uint8_t>(packet.size() % 256));
      seed.push_back(static_cast<uint8_t>(packet.size() / 256));
      const Input bytes = InputOf(packet);
      seed.insert(seed.end(), bytes.begin(), bytes.end());
    }
  }
  return seeds;
}

std::vector<Input> HttpSeeds() {
  std::vector<Input> seeds;
  for (const absl::string_view text :
       {"GET /metrics HTTP/1.1\r\nHost: localhost:9464\r\n\r\n",
        "GET /readyz?verbose HTTP/1.0\r\n\r\n",
        "HEAD / HTTP/1.1\r\nAccept: */*\r\nhost:  [::1]:80 \r\n\r\n"}) {
    seeds.emplace_back(text.begin(), text.end());
  }
  return seeds;
}

constexpr WireTarget kTargets[] = {
    {"envelope_of_daemon", &RunAsDaemon, &DaemonSeeds},
    {"envelope_of_client", &RunAsClient, &ClientSeeds},
    {"fragments", &RunFragments, &FragmentSeeds},
    {"http", &RunHttp, &HttpSeeds}};

}  // namespace

absl::Span<const WireTarget> WireTargets() { return kTargets; }

}  // namespace terrace
