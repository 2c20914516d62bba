#include "examples/train_gpt/command_line/optimizer_flags.h"

#include "absl/strings/str_cat.h"

namespace train_gpt {
namespace {

constexpr double kMostBeta = 0.999999999;  // 1 would never forget

std::vector<FlagSpec> AdamFlags() {
  return {
      NumberFlag(
          "--beta1", 0, kMostBeta, "AdamW's, of the first moment",
          [](Draft * d) -> auto& { return d->flags.adam.beta1; }),
      NumberFlag(
          "--beta2", 0, kMostBeta, "AdamW's, of the second moment",
          [](Draft * d) -> auto& { return d->flags.adam.beta2; }),
      NumberFlag(
          "--epsilon", 0, 1e3, "AdamW's",
          [](Draft * d) -> auto& { return d->flags.adam.epsilon; }),
      NumberFlag(
          "--weight-decay", 0, 1e3, "AdamW's, apart from the gradient",
          [](Draft * d) -> auto& { return d->flags.adam.weight_decay; }),
  };
}

std::vector<FlagSpec> WarmupFlags() {
  return {
      IntegerFlag(
          "--warmup-num-steps", 0, 1000000000,
          "of a scheduler of --config that leaves it open; by default 0",
          [](Draft * d) -> auto& { return d->flags.warmup.steps; }),
      NumberFlag(
          "--warmup-min-lr", 0, 1e3, "the same; by default 0",
          [](Draft * d) -> auto& { return d->flags.warmup.least_rate; }),
      NumberFlag(
          "--warmup-max-lr", 0, 1e3, "the same; by default --learning-rate",
          [](Draft * d) -> auto& { return d->flags.warmup.most_rate; }),
  };
}

}  // namespace

std::vector<FlagSpec> OptimizerFlags() {
  std::vector<FlagSpec> all = {
      ChoiceFlag<OptimizerKind>(
          "--optimizer",
          {{"adamw", OptimizerKind::kAdamW}, {"sgd", OptimizerKind::kSgd}},
          "sgd keeps no state at all",
          [](Draft * d) -> auto& { return d->flags.optimizer; }),
      NumberFlag(
          "--learning-rate", 0, 1e3, "of every step",
          [](Draft * d) -> auto& { return d->flags.learning_rate; }),
      NumberFlag(
          "--clip", 0, 1e9,
          "largest L2 norm of all gradients together; 0: no clipping",
          [](Draft * d) -> auto& { return d->flags.clip; }),
  };
  for (const auto& group : {AdamFlags(), WarmupFlags()}) {
    all.insert(all.end(), group.begin(), group.end());
  }
  return all;
}

absl::Status CheckOptimizer(const std::set<std::string>& given,
                            const Flags& flags) {
  for (const FlagSpec& spec : AdamFlags()) {
    if (flags.optimizer == OptimizerKind::kAdamW) break;
    if (given.count(spec.name) == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(spec.name, " is for adamw: --optimizer sgd has none"));
  }
  for (const FlagSpec& spec : WarmupFlags()) {
    if (!flags.config.empty() || given.count(spec.name) == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(spec.name, " needs --config with a scheduler"));
  }
  return absl::OkStatus();
}

}  // namespace train_gpt
