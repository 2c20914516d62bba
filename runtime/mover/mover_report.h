// What the mover says of itself, and what must hold between two of its steps.
// Mover only.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "runtime/messages/answers.h"
#include "runtime/messages/inbox.h"
#include "runtime/motion/links.h"
#include "runtime/motion/resting_tiers.h"
#include "runtime/motion/transfers.h"
#include "runtime/mover/admission.h"
#include "runtime/mover/byte_admission.h"
#include "runtime/mover/customers.h"
#include "runtime/residency/lent_room.h"
#include "runtime/residency/working_tiers.h"
#include "runtime/residency/write_placement.h"
#include "runtime/tensor/pin_book.h"
#include "runtime/tensor/tensor_table.h"
#include "terrace/stats.h"

namespace terrace {

// All outlive the report.
struct ReportParts {
  const Inbox* inbox = nullptr;
  const RestingTiers* resting = nullptr;
  const Links* links = nullptr;
  const WorkingTiers* working = nullptr;
  const StagingRoom* staging = nullptr;
  const TensorTable* table = nullptr;
  const PinBook* pins = nullptr;
  const BytePins* byte_pins = nullptr;
  const SpillRoom* spill = nullptr;
  const LentRoom* lent = nullptr;
  const Transfers* transfers = nullptr;
  const WritePlacement* placement = nullptr;
  const Customers* customers = nullptr;
  const Admission* admission = nullptr;
  const ByteAdmission* byte_admission = nullptr;
};

class Report {
 public:
  explicit Report(const ReportParts& parts) : parts_(parts) {}

  Stats MakeStats(const absl::Status& first_error) const;
  // So many tensors behind that one that a message has room for them.
  TensorPage MakePage(TensorId after) const;
  // Open queues and held pins, as errors name them; empty: none.
  std::string Holders() const;
  // And what else has the memory.
  std::string HoldersOfRoom() const;
  // The tensors' own invariants, and that the books of all parts agree.
  absl::Status CheckInvariants() const;

 private:
  ListedTensor List(const Tensor& tensor) const;
  void AddTiers(Stats* stats) const;
  double BlockedSeconds(Edge edge) const;
  void AddMemory(Stats* stats) const;
  void AddBytes(Stats* stats) const;
  void AddWorking(const TierResidency& residency, Stats* stats) const;
  // What moves between that tier and each memory.
  void AddLinks(const TierStats& far, TierId tier, Stats* stats) const;
  absl::Status CheckWorking(const TierResidency& residency) const;
  absl::Status CheckPlaces() const;
  absl::Status CheckWanted() const;

  const ReportParts parts_;
};

}  // namespace terrace
