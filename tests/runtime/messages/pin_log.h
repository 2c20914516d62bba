// Records how pins end.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "terrace/pin.h"

namespace terrace {

struct PinLog final : public PinOwner {
  void EndPin(uint64_t token, PinEnd end) override {
    ended.emplace_back(token, end);
  }
  std::vector<std::pair<uint64_t, PinEnd>> ended;
};

}  // namespace terrace
