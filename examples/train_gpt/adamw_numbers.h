// AdamW's constants, the same in every mode, so that runs can be compared.
#pragma once

namespace train_gpt {

struct AdamWNumbers {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
};

}  // namespace train_gpt
