#include <limits>

#include "absl/strings/str_cat.h"
#include "runtime/zero_config/sections.h"

namespace terrace {
namespace {

constexpr char kTrain[] = "train_batch_size";
constexpr char kMicro[] = "train_micro_batch_size_per_gpu";
constexpr char kSteps[] = "gradient_accumulation_steps";

// What the text says, or leaves to the caller as "auto", or, where it `leaves`
// the key to the caller, by saying nothing; absent: unknown.
absl::StatusOr<std::optional<int64_t>> Known(
    const KeyValues& values, const char* path,
    const std::optional<int64_t>& caller, bool leaves) {
  std::optional<int64_t> known;
  if (values.Given(path)) return known = values.Integer(path);
  if ((values.IsAuto(path) || leaves) && caller) {
    if (*caller < 1) {
      return values.Bad(path, absl::StrCat("the caller's value is ", *caller,
                                           "; allowed: at least 1"));
    }
    return known = *caller;
  }
  return known;
}

// False: it overflows.
bool Multiply(int64_t a, int64_t b, int64_t* product) {
  return !__builtin_mul_overflow(a, b, product);
}

absl::Status Mismatch(int64_t train, int64_t micro, int64_t steps,
                      int64_t ranks) {
  return absl::InvalidArgumentError(
      absl::StrCat(kTrain, " ", train, " is not ", kMicro, " ", micro, " * ",
                   kSteps, " ", steps, " * ", ranks, " ranks"));
}

absl::Status Indivisible(int64_t train, const char* what, int64_t by) {
  return absl::InvalidArgumentError(absl::StrCat(
      kTrain, " ", train, " is not a multiple of ", what, " = ", by));
}

}  // namespace

absl::Status ReadBatch(const ZeroConfigCaller& caller, const KeyValues& values,
                       ZeroConfigSettings* settings) {
  // Of a batch that is given, what is absent follows from what is there.
  const bool open = !values.Given(kTrain);
  auto train = Known(values, kTrain, caller.train_batch, !values.Given(kMicro));
  auto micro = Known(values, kMicro, caller.micro_batch, open);
  auto steps = Known(values, kSteps, caller.accumulation_steps, open);
  for (const auto* known : {&train, &micro, &steps}) {
    if (!known->ok()) return known->status();
  }
  const int64_t ranks = caller.world_size;
  if (!*train && !*micro) {
    return absl::InvalidArgumentError(
        absl::StrCat("neither ", kTrain, " nor ", kMicro,
                     " is known; give one of them, or pass micro_batch="));
  }
  if (*micro) {
    // The given product, or the number of steps that makes it.
    int64_t pass = 0;
    const bool fits = Multiply(**micro, ranks, &pass);
    if (!*steps) {
      if (*train && (!fits || **train % pass != 0)) {
        return Indivisible(**train, "micro-batch * ranks",
                           fits ? pass : std::numeric_limits<int64_t>::max());
      }
      *steps = *train ? **train / pass : 1;
    }
    int64_t product = 0;
    if (!fits || !Multiply(pass, **steps, &product)) {
      return absl::InvalidArgumentError(
          absl::StrCat(kMicro, " ", **micro, " * ", kSteps, " ", **steps, " * ",
                       ranks, " ranks is more than 2^63"));
    }
    if (*train && **train != product) {
      return Mismatch(**train, **micro, **steps, ranks);
    }
    *train = product;
  } else {
    if (!*steps) *steps = 1;
    int64_t others = 0;
    if (!Multiply(**steps, ranks, &others)) {
      others = std::numeric_limits<int64_t>::max();
    }
    if (**train % others != 0) {
      return Indivisible(**train, "accumulation steps * ranks", others);
    }
    *micro = **train / others;
  }
  settings->train_batch = **train;
  settings->micro_batch = **micro;
  settings->accumulation_steps = **steps;
  return absl::OkStatus();
}

}  // namespace terrace
