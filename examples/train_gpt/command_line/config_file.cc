#include "examples/train_gpt/command_line/config_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace train_gpt {
namespace {

using terrace::DType;
using terrace::OffloadDevice;
using terrace::ZeroConfigCaller;
using terrace::ZeroConfigSettings;

constexpr char kDevice[] = "zero_optimization.offload_optimizer.device";
constexpr char kPath[] = "zero_optimization.offload_optimizer.nvme_path";

absl::StatusOr<std::string> ReadText(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  // Of an empty file nothing can be inserted, which is a failure without errno.
  if (file.is_open()) text << file.rdbuf();
  if (file.is_open() && (text.good() || errno == 0)) return text.str();
  return absl::NotFoundError(absl::StrCat(
      "--config ", path, ": cannot be read: ", std::strerror(errno)));
}

// One file laid under one command line.
class Laying {
 public:
  Laying(const std::set<std::string>& given, Flags* flags)
      : given_(given), flags_(*flags) {}

  absl::Status Run() {
    const absl::StatusOr<std::string> text = ReadText(flags_.config);
    if (!text.ok()) return text.status();
    absl::Status status = Read(*text);
    if (status.ok()) status = CheckKind();
    if (status.ok()) status = LayBatch();
    if (status.ok()) status = LayOptimizer();
    if (status.ok()) status = LayOffload();
    if (status.ok()) LayParameters();
    if (status.ok()) flags_.notes = settings_.notes;
    return status;
  }

 private:
  bool Given(const char* flag) const { return given_.count(flag) > 0; }
  bool FileHas(const char* path) const {
    return std::binary_search(settings_.given.begin(), settings_.given.end(),
                              path);
  }
  absl::Status Contradiction(const std::string& flag,
                             const std::string& file) const {
    return absl::InvalidArgumentError(absl::StrCat(
        flag, " contradicts ", file, " of --config ", flags_.config));
  }

  ZeroConfigCaller Caller() const;
  absl::Status Read(const std::string& text);
  absl::Status CheckKind() const;
  absl::Status LayBatch();
  absl::Status LayOptimizer();
  absl::Status CheckNumber(const char* flag, double value, const char* path,
                           double of_file) const;
  absl::Status CheckAdam() const;
  absl::Status CheckWarmup() const;
  absl::Status LayOffload();
  void LayParameters();

  const std::set<std::string>& given_;
  Flags& flags_;
  ZeroConfigSettings settings_;
};

// The flags as what the library's caller knows; those that were not given are
// its defaults.
ZeroConfigCaller Laying::Caller() const {
  ZeroConfigCaller caller;
  const auto know = [&](const char* flag, const char* name, auto* known,
                        auto value) {
    *known = value;
    if (!Given(flag)) caller.defaults.insert(name);
  };
  know("--learning-rate", "learning_rate", &caller.learning_rate,
       flags_.learning_rate);
  know("--beta1", "beta1", &caller.beta1, flags_.adam.beta1);
  know("--beta2", "beta2", &caller.beta2, flags_.adam.beta2);
  know("--epsilon", "epsilon", &caller.epsilon, flags_.adam.epsilon);
  know("--weight-decay", "weight_decay", &caller.weight_decay,
       flags_.adam.weight_decay);
  know("--clip", "gradient_clipping", &caller.gradient_clipping, flags_.clip);
  know("--batch", "micro_batch", &caller.micro_batch, flags_.batch);
  know("--accumulate", "accumulation_steps", &caller.accumulation_steps,
       flags_.accumulate);
  know("--steps", "total_num_steps", &caller.total_num_steps, flags_.steps);
  know("--warmup-num-steps", "warmup_num_steps", &caller.warmup_num_steps,
       flags_.warmup.steps);
  know("--warmup-min-lr", "warmup_min_lr", &caller.warmup_min_lr,
       flags_.warmup.least_rate);
  know("--warmup-max-lr", "warmup_max_lr", &caller.warmup_max_lr,
       flags_.warmup.most_rate);
  caller.model.parameters = ZeroConfigCaller::Parameters::kOffloadedToNvme;
  return caller;
}

absl::Status Laying::Read(const std::string& text) {
  ZeroConfigCaller caller = Caller();
  const bool typed = Given("--dtype");
  const DType dtype = DTypeOf(flags_.dtype);
  if (typed) caller.parameter_dtype = dtype;
  auto settings = terrace::ReadZeroConfig(text, caller);
  if (!settings.ok() && typed) {
    // Without the flag it would read: then the flag is what is wrong.
    ZeroConfigCaller without = caller;
    without.parameter_dtype.reset();
    const auto plain = terrace::ReadZeroConfig(text, without);
    if (plain.ok() && plain->parameter_dtype != dtype) {
      return Contradiction(
          absl::StrCat("--dtype ", terrace::DTypeName(dtype)),
          absl::StrCat("bf16 and fp16, which ask for ",
                       terrace::DTypeName(plain->parameter_dtype), ","));
    }
  }
  if (!settings.ok() && (Given("--batch") || Given("--accumulate"))) {
    ZeroConfigCaller without = caller;
    without.micro_batch.reset();
    without.accumulation_steps.reset();
    const auto plain = terrace::ReadZeroConfig(text, without);
    if (plain.ok()) {
      std::vector<std::string> of_batch;
      if (Given("--batch")) {
        of_batch.push_back(absl::StrCat("--batch ", flags_.batch));
      }
      if (Given("--accumulate")) {
        of_batch.push_back(absl::StrCat("--accumulate ", flags_.accumulate));
      }
      return Contradiction(
          absl::StrJoin(of_batch, " "),
          absl::StrCat("train_batch_size ", plain->train_batch));
    }
  }
  if (!settings.ok()) {
    return absl::Status(settings.status().code(),
                        absl::StrCat("--config ", flags_.config, ": ",
                                     settings.status().message()));
  }
  settings_ = *std::move(settings);
  return absl::OkStatus();
}

// What this program can be.
absl::Status Laying::CheckKind() const {
  if (flags_.optimizer == OptimizerKind::kSgd) {
    return absl::InvalidArgumentError(
        "--config is for adamw: --optimizer sgd has nothing to configure");
  }
  return absl::OkStatus();
}

absl::Status Laying::LayBatch() {
  const char* train = "train_batch_size";
  const char* steps = "gradient_accumulation_steps";
  const char* micro = "train_micro_batch_size_per_gpu";
  if (Given("--batch") && flags_.batch != settings_.micro_batch) {
    return Contradiction(
        absl::StrCat("--batch ", flags_.batch),
        absl::StrCat(FileHas(micro) ? micro : train, ", which gives ",
                     settings_.micro_batch, ","));
  }
  flags_.batch = settings_.micro_batch;
  // With a micro-batch only, the number of them is the command line's.
  if (!FileHas(steps) && !FileHas(train)) return absl::OkStatus();
  if (Given("--accumulate") &&
      flags_.accumulate != settings_.accumulation_steps) {
    return Contradiction(
        absl::StrCat("--accumulate ", flags_.accumulate),
        absl::StrCat(FileHas(steps) ? steps : train, ", which gives ",
                     settings_.accumulation_steps, ","));
  }
  flags_.accumulate = settings_.accumulation_steps;
  return absl::OkStatus();
}

absl::Status Laying::LayOptimizer() {
  const char* clipping = "gradient_clipping";
  if (Given("--clip") && FileHas(clipping) &&
      flags_.clip != settings_.max_gradient_norm) {
    return Contradiction(
        absl::StrCat("--clip ", flags_.clip),
        absl::StrCat(clipping, " ", settings_.max_gradient_norm));
  }
  if (!Given("--clip")) flags_.clip = settings_.max_gradient_norm;
  if (settings_.adam) {
    const absl::Status same = CheckAdam();
    if (!same.ok()) return same;
    flags_.adam = *settings_.adam;
    flags_.learning_rate = flags_.adam.learning_rate;
  }
  const absl::Status warmup = CheckWarmup();
  if (!warmup.ok()) return warmup;
  flags_.schedule = settings_.schedule;
  flags_.skip_nonfinite = settings_.skip_nonfinite;
  flags_.loss_scale = settings_.loss_scale;
  for (const Dtype dtype :
       {Dtype::kFloat32, Dtype::kBFloat16, Dtype::kFloat16}) {
    if (DTypeOf(dtype) == settings_.parameter_dtype) flags_.dtype = dtype;
  }
  return absl::OkStatus();
}

absl::Status Laying::CheckNumber(const char* flag, double value,
                                 const char* path, double of_file) const {
  if (!Given(flag) || value == of_file) return absl::OkStatus();
  return Contradiction(absl::StrCat(flag, " ", value),
                       absl::StrCat(path, ", which is ", of_file,
                                    " (\"auto\" leaves it to the flag),"));
}

absl::Status Laying::CheckAdam() const {
  const terrace::AdamOptions& file = *settings_.adam;
  const terrace::AdamOptions& flags = flags_.adam;
  const char* lr = "optimizer.params.lr";
  const char* betas = "optimizer.params.betas";
  const char* eps = "optimizer.params.eps";
  const char* decay = "optimizer.params.weight_decay";
  for (const absl::Status& status :
       {CheckNumber("--learning-rate", flags_.learning_rate, lr,
                    file.learning_rate),
        CheckNumber("--beta1", flags.beta1, betas, file.beta1),
        CheckNumber("--beta2", flags.beta2, betas, file.beta2),
        CheckNumber("--epsilon", flags.epsilon, eps, file.epsilon),
        CheckNumber("--weight-decay", flags.weight_decay, decay,
                    file.weight_decay)}) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Laying::CheckWarmup() const {
  using Kind = terrace::LearningRateSchedule::Kind;
  const terrace::LearningRateSchedule& schedule = settings_.schedule;
  const bool ends =
      schedule.kind == Kind::kWarmup || schedule.kind == Kind::kWarmupDecay;
  const bool rises = ends || schedule.kind == Kind::kWarmupCosine;
  const auto missing = [&](const char* flag) {
    return absl::InvalidArgumentError(absl::StrCat(
        flag, " needs a scheduler that has it in --config ", flags_.config));
  };
  for (const char* flag : {"--warmup-min-lr", "--warmup-max-lr"}) {
    if (Given(flag) && !ends) return missing(flag);
  }
  if (Given("--warmup-num-steps") && !rises) {
    return missing("--warmup-num-steps");
  }
  const Warmup& warmup = flags_.warmup;
  // Of fewer than two steps DeepSpeed makes two.
  const auto steps = static_cast<double>(std::max<int64_t>(2, warmup.steps));
  for (const absl::Status& status :
       {CheckNumber("--warmup-num-steps", steps,
                    "scheduler.params.warmup_num_steps",
                    static_cast<double>(schedule.warmup_steps)),
        CheckNumber("--warmup-min-lr", warmup.least_rate,
                    "scheduler.params.warmup_min_lr", schedule.least),
        CheckNumber("--warmup-max-lr", warmup.most_rate.value_or(0),
                    "scheduler.params.warmup_max_lr", schedule.most)}) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Laying::LayOffload() {
  if (Given("--daemon") && !settings_.daemon.empty() &&
      flags_.daemon != settings_.daemon) {
    return Contradiction(absl::StrCat("--daemon ", flags_.daemon),
                         absl::StrCat("terrace.daemon ", settings_.daemon));
  }
  if (settings_.offload_device == OffloadDevice::kCpu) {
    for (const char* flag :
         {"--nvme-path", "--memory-budget", "--tier", "--daemon"}) {
      if (!Given(flag)) continue;
      return Contradiction(flag, absl::StrCat(kDevice, " \"cpu\""));
    }
    return absl::OkStatus();
  }
  if (settings_.offload_device == OffloadDevice::kNone) {
    return absl::OkStatus();
  }
  if (Given("--tier")) {
    return Contradiction("--tier", absl::StrCat(kDevice, " \"nvme\""));
  }
  if (Given("--nvme-path") && flags_.nvme_paths != settings_.nvme_paths) {
    return Contradiction(
        absl::StrCat("--nvme-path ", absl::StrJoin(flags_.nvme_paths, ", ")),
        absl::StrCat(kPath, " ", absl::StrJoin(settings_.nvme_paths, ", ")));
  }
  if (Given("--daemon") && settings_.daemon.empty()) {
    return Contradiction(
        absl::StrCat("--daemon ", flags_.daemon),
        absl::StrCat(kPath, " ", absl::StrJoin(settings_.nvme_paths, ",")));
  }
  flags_.nvme_paths = settings_.nvme_paths;
  flags_.daemon = settings_.daemon;
  // Sizes of chunks and threads, which do not depend on the parameters.
  ZeroConfigSettings sized = settings_;
  sized.adam = flags_.adam;
  const auto options = terrace::OptionsFromZeroConfig(
      sized, {{"any", settings_.parameter_dtype, 1 << 20}}, int64_t{1} << 30);
  if (!options.ok()) return options.status();
  flags_.chunk_bytes = options->optimizer.chunk_bytes;
  flags_.update_threads = options->runtime.threads;
  return absl::OkStatus();
}

// Parameters and state on disks share them, and the memory above.
void Laying::LayParameters() {
  const std::vector<std::string>& paths = settings_.callers.parameters.paths;
  flags_.parameter_paths = paths;
  if (settings_.callers.parameters.device == terrace::OffloadDevice::kNvme) {
    flags_.parameter_daemon = settings_.daemon;
  }
  if (paths.empty() || flags_.nvme_paths.empty()) return;
  for (const std::string& path : paths) {
    const auto is_same = [&](const std::string& other) {
      std::error_code error;
      return path == other || std::filesystem::equivalent(path, other, error);
    };
    if (std::none_of(flags_.nvme_paths.begin(), flags_.nvme_paths.end(),
                     is_same)) {
      flags_.nvme_paths.push_back(path);
    }
  }
  flags_.parameter_paths = flags_.nvme_paths;
}

}  // namespace

absl::Status ApplyConfig(const std::set<std::string>& given, Flags* flags) {
  return Laying(given, flags).Run();
}

}  // namespace train_gpt
