// What the tests of steps that go on between calls train.
#pragma once

#include "tests/optimizer/reference_optimizer.h"

namespace terrace {

// About a dozen chunks of the smallest size; small ones share a chunk.
inline Model ManyChunks() {
  return Model::Of({{"a", DType::kFloat32, 16411},
                    {"b", DType::kBFloat16, 928},
                    {"c", DType::kFloat32, 1},
                    {"none", DType::kFloat32, 0},
                    {"d", DType::kBFloat16, 12011},
                    {"e", DType::kFloat32, 9001},
                    {"f", DType::kFloat32, 300},
                    {"g", DType::kFloat32, 8191}},
                   21);
}

}  // namespace terrace
