// What ranges are reserved from, as a test has it: it hands out whatever is
// asked for and keeps a list of what came back.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/support/medium/tier_ids.h"
#include "tiers/reservation.h"

namespace terrace {

class FakeReserver final : public Reserver {
 public:
  explicit FakeReserver(TierId id) : id_(id) {}

  TierId id() const override { return id_; }
  void Free(Extent extent) override { freed_.push_back(extent); }

  Reservation Give(int64_t offset, int64_t size_bytes = 8192) {
    return {this, {offset, size_bytes}};
  }
  const std::vector<Extent>& freed() const { return freed_; }

 private:
  const TierId id_;
  std::vector<Extent> freed_;
};

}  // namespace terrace
