// Tensors that come and go: registrations that wait for room below to grow, and
// ends that wait for the tensor's own transfers. Mover only.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/threads/heartbeat.h"
#include "runtime/messages/ports.h"
#include "runtime/messages/requests.h"
#include "runtime/motion/transfers.h"
#include "runtime/residency/queue_error.h"
#include "runtime/residency/write_back.h"
#include "runtime/residency/write_placement.h"
#include "runtime/tensor/pin_book.h"
#include "runtime/tensor/tensor_table.h"
#include "runtime/tensor/wanted_tensors.h"

namespace terrace {

// All outlive the registrar.
struct RegistrarParts {
  Heartbeat* heartbeat = nullptr;  // the mover's
  const Ports* ports = nullptr;
  TensorTable* table = nullptr;
  RestingTiers* resting = nullptr;
  WritePlacement* placement = nullptr;
  Transfers* transfers = nullptr;
  const WorkingTiers* working = nullptr;
  WriteBack* write_back = nullptr;
  const PinBook* pins = nullptr;
};

class Registrar {
 public:
  explicit Registrar(RegistrarParts parts) : parts_(parts) {}

  void Register(RegisterRequest request);
  // `after`: pins never taken have ended by that message.
  void Unregister(UnregisterRequest request, uint64_t after);
  // A disk that does not answer in time is degraded, and what waits for it
  // tries the next one. Its answer may still come.
  void CheckGrowth(absl::Time now, std::vector<QueueError>* errors);
  void On(const Grown& event);

  // What waited first goes first. `wanted` says which tensors groups of open
  // queues want; messages up to number `processed` have been heard.
  void ServeEnds(const WantedTensors& wanted, uint64_t processed);
  void ServeRegistrations();
  // All that wait are told `why`.
  void Refuse(const absl::Status& why);

 private:
  // Tensors that wait for a file to grow.
  struct Registration {
    RegisterRequest request;
    std::vector<Tensor*> tensors;  // of each spec
    size_t placed = 0;             // of those, they have a place
    TierId tier = kNoTier;         // the growing file's
    std::vector<int64_t> refused;  // per tier: not asked again for so much
    absl::Status refusal;  // of the last of those, with what others said
  };
  struct End {
    UnregisterRequest request;  // its id is empty once it is answered
    Tensor* tensor = nullptr;   // once no group wants it
    uint64_t after = 0;
  };

  // Once: its id is empty then.
  void Answer(RequestId& id, terrace::Answer answer) const;
  bool Serve(Registration& registration);
  bool PlaceNext(Registration& registration);
  void TakeBack(const Registration& registration);
  void RefuseTier(Registration& registration, const absl::Status& why);
  bool ServeEnd(End& end, bool is_wanted, uint64_t processed);
  bool BeginEnd(End& end, bool is_wanted, uint64_t processed);

  const RegistrarParts parts_;
  std::vector<Registration> registrations_;  // in the order they came
  std::vector<End> ends_;
};

}  // namespace terrace
