// A message of each kind that a job's process and its runtime send, with every
// field of theirs.
#pragma once

#include <utility>

#include "base/io_fault.h"
#include "daemon/wire/job_messages.h"

namespace terrace {

inline JobRequests SomeRequests() {
  JobRequests all;
  all.posted = 12;
  TensorSpec spec;
  spec.name = "layer";
  spec.size_bytes = 4096;
  spec.global_offset = 7;
  spec.step_number = 3;
  all.requests = {
      RegisterRequest{{.number = 1}, {spec, spec}},
      UnregisterRequest{{.number = 2}, TensorId{5}},
      OpenRequest{.id = {.number = 3},
                  .slot_bytes = 8192,
                  .slots = 4,
                  .deadline = absl::InfiniteFuture(),
                  .tier = "dram"},
      CloseQueueRequest{9},
      PushRequest{.queue = 9,
                  .wants = {{TensorId{5}, Access::kUpdate},
                            {TensorId{6}, static_cast<Access>(200)}},
                  .tag = 44,
                  .deadline = absl::UnixEpoch() + absl::Nanoseconds(5)},
      EndPinRequest{.token = ~uint64_t{0}, .end = PinEnd::kDiscard},
      StepRequest{{.number = 4}, StepRequest::Kind::kCommit, 9, 17},
      PrefetchRequest{{TensorId{1}, TensorId{2}}},
      StatsRequest{{.number = 5}},
      GrowRequest{{.number = 6}, 1 << 20},
      CloseRequest{{.number = 7}, absl::InfinitePast(), true},
      OpenBytesRequest{{.number = 8}, 1 << 20, "dram"},
      PushBytesRequest{.queue = 10,
                       .wants = {{TensorId{7}, Access::kOverwrite}},
                       .in_use = {3, ~uint64_t{0}},
                       .lane = 2,
                       .tag = 45,
                       .deadline = absl::InfiniteFuture()},
      WaitingRequest{10, {3}, true},
      HoldAtMostRequest{10, 4096},
      KeepRequest{8},
      TouchRequest{10, {TensorId{7}, TensorId{8}}, 1},
      ClaimRequest{.memory_bytes = 1 << 20,
                   .queues = {{.queue = 9, .step = 17, .hold_at_most = 4096},
                              {.queue = 10}},
                   .pins = {3, ~uint64_t{0}},
                   .recalled = {3},
                   .kept = {4},
                   .known = {{0, 3}, {7, 9}},
                   .unregistering = {{5}}}};
  return all;
}

inline JobNews SomeNews() {
  Stats stats;
  stats.engine = "io_uring";
  stats.hits = 3;
  stats.first_error = absl::DataLossError("first");
  TierStats& tier = stats.tiers.emplace_back();
  tier.name = "nvme:/a";
  tier.kind = TierKind::kDisk;
  tier.state = TierState::kSlow;
  tier.write_error =
      WithIoFault(absl::UnavailableError("gone"), {5, "/a/file", 4096});
  tier.traffic.read_bytes_per_second = 1.5;
  tier.disk.jobs_elsewhere = {"one", "two"};
  stats.links.push_back({.from = "dram", .to = "nvme:/a", .bytes = 8});
  stats.host.huge_page_share = 0.25;
  stats.bytes = {1, 2, 3, 4, 5, 6};
  QueueNews ready;
  ready.queue = 9;
  ready.groups.resize(2);
  ready.groups[0].tag = 44;
  ready.groups[0].grants = Grants{{1, TensorId{5}, 4096, 100}};
  ready.groups[0].cause = WaitCause::kRead;
  ready.groups[1].grants = absl::ResourceExhaustedError("no room");
  ready.blocked_by_own_pins = true;
  ready.processed = 11;
  ready.blocked_also = absl::AbortedError("also");
  BytesNews bytes;
  bytes.queue = 10;
  bytes.groups.resize(2);
  bytes.groups[0].tag = 45;
  bytes.groups[0].grants = Grants{{2, TensorId{7}, 1 << 30, 100}};
  bytes.groups[0].beyond_bytes = 8192;
  bytes.groups[0].recalls = {3, 4};
  bytes.groups[1].grants = absl::DataLossError("gone");
  bytes.recalls = {5};
  JobNews news;
  news.processed = 13;
  news.entries = {AnswerNews{1, std::vector<TensorId>{{4}, {5}}},
                  AnswerNews{2, absl::OkStatus()},
                  AnswerNews{3, OpenedQueue{9, kDramTier}},
                  AnswerNews{5, stats},
                  std::move(ready),
                  QueueClosed{9},
                  QueueGone{10},
                  LastStats{stats},
                  std::move(bytes)};
  return news;
}

}  // namespace terrace
