// One AdamW step through the installed package.
#include <cstdio>
#include <vector>

#include "terrace/adam.h"
#include "terrace/version.h"

int main() {
  std::vector<float> weight = {1, 2, 3}, m(3), v(3), gradient = {1, -1, 0};
  terrace::AdamOptions options;
  options.learning_rate = 0.1;
  options.weight_decay = 0;
  terrace::AdamStepReference(
      options, /*step=*/1, 1.0f, absl::MakeSpan(weight), absl::MakeSpan(m),
      absl::MakeSpan(v), absl::MakeConstSpan(gradient));
  // The first step of Adam moves each weight by the rate, against the sign.
  std::printf("%g %g %g\n", weight[0], weight[1], weight[2]);
  return weight[0] < 0.91f && weight[1] > 2.09f && weight[2] == 3.0f ? 0 : 1;
}
