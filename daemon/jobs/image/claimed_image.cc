#include "daemon/jobs/image/claimed_image.h"

#include <cstdint>
#include <iterator>
#include <map>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

namespace terrace {

RuntimeImage ClaimedOf(RuntimeImage image, const ClaimRequest& claim) {
  // What its process was never told of has no contents yet.
  std::map<int64_t, int64_t> ends;  // by the first
  for (const TensorRange& each : claim.known) ends[each.first] = each.end;
  absl::flat_hash_set<int64_t> tensors;
  std::erase_if(image.tensors, [&ends](const TensorImage& each) {
    const auto behind = ends.upper_bound(each.id.value);
    return behind == ends.begin() || std::prev(behind)->second <= each.id.value;
  });
  for (const TensorImage& each : image.tensors) tensors.insert(each.id.value);
  const absl::flat_hash_set<uint64_t> pins(claim.pins.begin(),
                                           claim.pins.end());
  std::erase_if(image.pins, [&](const PinImage& each) {
    return !pins.contains(each.token) || !tensors.contains(each.tensor.value);
  });
  const absl::flat_hash_set<uint64_t> recalled(claim.recalled.begin(),
                                               claim.recalled.end());
  const absl::flat_hash_set<uint64_t> kept(claim.kept.begin(),
                                           claim.kept.end());
  for (PinImage& each : image.pins) {
    each.is_recalled = recalled.contains(each.token);
    each.is_kept = kept.contains(each.token);
  }
  absl::flat_hash_map<int64_t, const ClaimedQueue*> queues;
  for (const ClaimedQueue& each : claim.queues) queues[each.queue] = &each;
  std::erase_if(image.queues, [&](const QueueImage& each) {
    return !queues.contains(each.id);
  });
  for (QueueImage& each : image.queues) {
    each.step = queues.at(each.id)->step;
    each.hold_at_most = queues.at(each.id)->hold_at_most;
  }
  return image;
}

}  // namespace terrace
