#include "daemon/client/queue_sinks.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

std::vector<ReadyGroup> Failed(uint64_t tag, const absl::Status& why) {
  std::vector<ReadyGroup> failed(1);
  failed.front().tag = tag;
  failed.front().grants = why;
  return failed;
}

}  // namespace

absl::Status WrongAnswer(absl::string_view what) {
  return absl::InternalError(absl::StrCat("the daemon answered with ", what));
}

void QueueSinks::OpenQueue(int64_t id) {
  slots_[id] = port_.OpenQueue(id);
  last_ = std::max(last_, id);
}

void QueueSinks::OpenBytes(int64_t id) {
  bytes_[id] = port_.OpenBytes(id);
  last_ = std::max(last_, id);
}

absl::Status QueueSinks::Hear(QueueNews& news) {
  const auto found = slots_.find(news.queue);
  if (found == slots_.end()) return HearOfNone(news.queue, news.groups);
  TERRACE_RETURN_IF_ERROR(CheckGroups(news.groups));
  found->second->Publish(&news.groups, news.blocked_by_own_pins, news.processed,
                         news.blocked_also);
  return absl::OkStatus();
}

absl::Status QueueSinks::Hear(BytesNews& news) {
  const auto found = bytes_.find(news.queue);
  if (found == bytes_.end()) return HearOfNone(news.queue, news.groups);
  TERRACE_RETURN_IF_ERROR(CheckGroups(news.groups));
  found->second->Publish(&news.groups, &news.recalls);
  return absl::OkStatus();
}

absl::Status QueueSinks::HearOfNone(
    int64_t queue, const std::vector<ReadyGroup>& groups) const {
  const bool has_pins = absl::c_any_of(
      groups, [](const ReadyGroup& each) { return each.grants.ok(); });
  if (!Has(queue) && queue <= last_ && !has_pins) return absl::OkStatus();
  return WrongAnswer(absl::StrCat("news of no such queue: ", queue));
}

absl::Status QueueSinks::CheckGroups(
    const std::vector<ReadyGroup>& groups) const {
  for (const ReadyGroup& group : groups) {
    TERRACE_RETURN_IF_ERROR(CheckGrants(group));
  }
  return absl::OkStatus();
}

absl::Status QueueSinks::CheckGrants(const ReadyGroup& group) const {
  if (!group.grants.ok()) return absl::OkStatus();
  if (group.grants->empty()) return WrongAnswer("a group of no pins");
  for (const Grant& each : *group.grants) {
    const bool is_within = each.offset >= 0 && each.size_bytes >= 0 &&
                           each.offset <= memory_bytes_ &&
                           each.size_bytes <= memory_bytes_ - each.offset &&
                           ClientOfToken(each.token) == port_.client();
    if (is_within) continue;
    return WrongAnswer(absl::StrCat("a pin of ", each.size_bytes,
                                    " bytes at offset ", each.offset, " of ",
                                    memory_bytes_));
  }
  return absl::OkStatus();
}

void QueueSinks::Hear(const QueueClosed& news) {
  const auto slots = slots_.find(news.queue);
  if (slots != slots_.end()) slots->second->Close();
  const auto bytes = bytes_.find(news.queue);
  if (bytes != bytes_.end()) bytes->second->Close();
}

// Closed, as who waits there would wait for ever.
void QueueSinks::Hear(const QueueGone& news) {
  Hear(QueueClosed{news.queue});
  slots_.erase(news.queue);
  bytes_.erase(news.queue);
}

void QueueSinks::Fail(const PushRequest& push, const absl::Status& why) {
  const auto found = slots_.find(push.queue);
  if (found == slots_.end()) return;
  std::vector<ReadyGroup> failed = Failed(push.tag, why);
  found->second->Publish(&failed, false, 0, absl::OkStatus());
}

void QueueSinks::Fail(const PushBytesRequest& push, const absl::Status& why) {
  const auto found = bytes_.find(push.queue);
  if (found == bytes_.end()) return;
  std::vector<ReadyGroup> failed = Failed(push.tag, why);
  std::vector<uint64_t> recalls;
  found->second->Publish(&failed, &recalls);
}

void QueueSinks::CloseAll() {
  for (const auto& [id, queue] : slots_) queue->Close();
  for (const auto& [id, queue] : bytes_) queue->Close();
}

}  // namespace terrace
