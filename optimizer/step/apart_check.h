// Parameters of a step are written at the same time, so no two may share an
// element. Looked at again when an address has changed, which is one of its
// device: equal ones of two devices are apart.
//
// Thread-compatible.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "terrace/optimizer.h"

namespace terrace {

class ApartCheck {
 public:
  // InvalidArgument, naming two parameters with a gradient that overlap. Both
  // lists have passed CheckStep.
  absl::Status Check(absl::Span<const ParameterSpec> specs,
                     absl::Span<const ParameterData> parameters);

 private:
  struct Place {
    const void* start = nullptr;  // null: not looked at
    const Device* device = nullptr;
    bool operator==(const Place&) const = default;
  };
  // Where each parameter was when all of them were apart.
  std::vector<Place> known_;
};

}  // namespace terrace
