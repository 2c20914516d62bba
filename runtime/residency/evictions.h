// What leaves the memories because its owner asks for it, and for nobody else's
// room: all that nobody has pinned, no group waits for and no window has. What
// is clean goes at once; what is dirty is written back as any that leaves is,
// a few at a time, so that those of a job that goes on find their disks free.
//
// It looks at so many tensors a turn, one after the other by their ids, and at
// each once: what is used after that stays. Mover only.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/messages/answers.h"
#include "runtime/messages/ports.h"
#include "runtime/messages/requests.h"
#include "runtime/residency/queue_error.h"
#include "runtime/residency/working_tiers.h"
#include "runtime/residency/write_back.h"
#include "runtime/tensor/tensor_table.h"
#include "runtime/tensor/wanted_tensors.h"

namespace terrace {

// All outlive it.
struct EvictionsParts {
  const Ports* ports = nullptr;
  const TensorTable* table = nullptr;
  const WorkingTiers* working = nullptr;
  WriteBack* write_back = nullptr;
};

class Evictions {
 public:
  // That are looked at in a turn, and that are written back at a time.
  static constexpr int kTensorsATurn = 1024;
  static constexpr size_t kMostLeaving = 64;

  explicit Evictions(const EvictionsParts& parts) : parts_(parts) {}

  // The one before, if it is not answered, is answered with what it came to.
  void Begin(const EvictRequest& request);
  // In each turn. True: there is more to do at once.
  bool Serve(absl::Time now, const WantedTensors& wanted,
             std::vector<QueueError>* errors);
  void Refuse(const absl::Status& why);
  absl::Time NextDeadline() const {
    return request_.has_value() ? request_->deadline : absl::InfiniteFuture();
  }

 private:
  struct Leaving {
    TensorId tensor;
    TierId tier;
    int64_t bytes = 0;
  };

  // Whether all have been looked at.
  bool LookAtSome(const WantedTensors& wanted, std::vector<Tensor*>* start);
  void LookAt(Tensor& tensor, TierResidency& residency,
              const WantedTensors& wanted, std::vector<Tensor*>* start);
  // Null: it may leave.
  Evicted::Part* WhyItStays(const Tensor& tensor, const Copy& copy,
                            const TierResidency& residency,
                            const WantedTensors& wanted);
  void CountThoseThatLeft();
  void End();

  const EvictionsParts parts_;
  std::optional<EvictRequest> request_;
  Evicted evicted_;          // so far
  TensorId after_;           // which was looked at last
  bool is_late_ = false;     // nothing more is written back
  bool has_looked_ = false;  // at all
  std::vector<Leaving> leaving_;
};

}  // namespace terrace
