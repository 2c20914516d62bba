// Devices that have failed for good, and what was there: contents that are
// nowhere else are lost, all other copies go, each once nothing uses it. Mover
// only.
#pragma once

#include <utility>
#include <vector>

#include "runtime/motion/transfers.h"
#include "runtime/residency/working_tiers.h"
#include "runtime/tensor/tensor_table.h"
#include "terrace/tensor.h"

namespace terrace {

class LostDevice {
 public:
  // Both outlive it.
  LostDevice(const TensorTable& table, const WorkingTiers& working)
      : table_(table), working_(working) {}

  // Each turn; nothing while all devices are well, or there is none. Adds an
  // end for each tensor that is lost, whose copy its hearer drops.
  void Serve(std::vector<Arrival>* arrivals);

 private:
  void Begin(TierId tier);
  // True: nothing of the tensor is left there.
  bool End(TierId tier, TensorId id, std::vector<Arrival>* arrivals) const;

  const TensorTable& table_;
  const WorkingTiers& working_;
  std::vector<TierId> lost_;
  // Have a copy there still.
  std::vector<std::pair<TierId, TensorId>> left_;
};

}  // namespace terrace
