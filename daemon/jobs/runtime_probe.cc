#include "daemon/jobs/runtime_probe.h"

#include <variant>

namespace terrace {

std::shared_ptr<RuntimeProbe> RuntimeProbe::Join(
    LocalRuntime& runtime, std::shared_ptr<AnswerBoxes> boxes) {
  std::shared_ptr<RuntimeProbe> probe(
      new RuntimeProbe(runtime, std::move(boxes)));
  probe->id_ = runtime.mover().ports().Join(probe);
  return probe;
}

void RuntimeProbe::AskStats() {
  runtime_.mover().inbox()->Post(
      Request(StatsRequest{RequestId{id_, ++number_}}));
}

void RuntimeProbe::AskPage(TensorId after) {
  runtime_.mover().inbox()->Post(
      OwnerRequest(ListRequest{RequestId{id_, ++number_}, after}));
}

void RuntimeProbe::Evict(const EvictionOrder& order) {
  runtime_.mover().inbox()->Post(
      OwnerRequest(EvictRequest{RequestId{id_, ++number_}, order.ticket,
                                runtime_.clock().Now() + order.patience}));
}

void RuntimeProbe::Lend(const LendOrder& order) {
  runtime_.mover().inbox()->Post(OwnerRequest(
      LendRequest{.id = {id_, ++number_},
                  .ticket = order.ticket,
                  .bytes = order.bytes,
                  .deadline = runtime_.clock().Now() + order.patience,
                  .in_parts = true}));
}

void RuntimeProbe::Deliver(uint64_t /*number*/, Answer answer) {
  if (auto* const stats = std::get_if<Stats>(&answer)) {
    boxes_->stats.Put(std::move(*stats));
  } else if (auto* const page = std::get_if<TensorPage>(&answer)) {
    boxes_->pages.Put(std::move(*page));
  } else if (auto* const evicted = std::get_if<Evicted>(&answer)) {
    boxes_->evicted.Put(*evicted);
  } else if (auto* const lent = std::get_if<Lent>(&answer)) {
    boxes_->lent.Put(*lent);
  }
}

}  // namespace terrace
