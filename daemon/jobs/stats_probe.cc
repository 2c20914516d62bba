#include "daemon/jobs/stats_probe.h"

#include <variant>

namespace terrace {

std::shared_ptr<StatsProbe> StatsProbe::Join(LocalRuntime& runtime,
                                             std::shared_ptr<StatsBox> box) {
  std::shared_ptr<StatsProbe> probe(new StatsProbe(runtime, std::move(box)));
  probe->id_ = runtime.mover().ports().Join(probe);
  return probe;
}

void StatsProbe::Ask() {
  runtime_.mover().inbox()->Post(
      Request(StatsRequest{RequestId{id_, ++number_}}));
}

void StatsProbe::Deliver(uint64_t /*number*/, Answer answer) {
  if (auto* const stats = std::get_if<Stats>(&answer)) {
    box_->Put(std::move(*stats));
  }
}

}  // namespace terrace
