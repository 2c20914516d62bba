#include "examples/train_gpt/command_line/flags.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "examples/train_gpt/command_line/checkpoint_flags.h"
#include "examples/train_gpt/command_line/config_file.h"
#include "examples/train_gpt/command_line/daemon_flags.h"
#include "examples/train_gpt/command_line/flag_spec.h"
#include "examples/train_gpt/command_line/flag_values.h"
#include "examples/train_gpt/command_line/optimizer_flags.h"
#include "examples/train_gpt/command_line/parameter_flags.h"

namespace train_gpt {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

absl::Status CheckDevice(absl::string_view text, Draft*) {
  if (text == "cpu") return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--device '", text, "' is not supported: parameters are on cpu"));
}

std::vector<FlagSpec> ModelFlags() {
  return {
      TextFlag(
          "--size", "PRESET",
          "tiny (3.1M parameters, the default), mini (30M), small (124M), "
          "medium (355M), large (774M)",
          [](Draft * d) -> auto& { return d->size; }),
      IntegerFlag(
          "--layers", 1, 1024, "blocks",
          [](Draft * d) -> auto& { return d->layers; }),
      IntegerFlag(
          "--heads", 1, 65536, "attention heads; divides the width",
          [](Draft * d) -> auto& { return d->heads; }),
      IntegerFlag(
          "--width", 1, 65536, "numbers in an embedding",
          [](Draft * d) -> auto& { return d->width; }),
      IntegerFlag(
          "--vocab", 1, 1 << 20, "rows of the embedding",
          [](Draft * d) -> auto& { return d->vocab; }),
      IntegerFlag(
          "--context", 1, 1 << 20, "learned positions",
          [](Draft * d) -> auto& { return d->context; }),
      ChoiceFlag<Dtype>(
          "--dtype",
          {{"fp32", Dtype::kFloat32},
           {"bf16", Dtype::kBFloat16},
           {"fp16", Dtype::kFloat16}},
          "parameters and gradients; fp16 scales its losses",
          [](Draft * d) -> auto& { return d->flags.dtype; }),
      {"--device", "cpu", "where parameters and gradients are", CheckDevice},
      TextFlag(
          "--data", "FILE|FOLDER",
          "text, one token a byte; or .bin files of uint16 tokens; by "
          "default LibTorch's own headers",
          [](Draft * d) -> auto& { return d->flags.data; }),
  };
}

std::vector<FlagSpec> TrainingFlags() {
  return {
      IntegerFlag(
          "--steps", 1, 1000000000, "steps to train",
          [](Draft * d) -> auto& { return d->flags.steps; }),
      IntegerFlag(
          "--batch", 1, 65536, "rows in a micro-batch",
          [](Draft * d) -> auto& { return d->flags.batch; }),
      IntegerFlag(
          "--seq", 1, 1 << 20,
          "tokens in a row; by default 128, at most the context",
          [](Draft * d) -> auto& { return d->seq; }),
      IntegerFlag(
          "--accumulate", 1, 65536, "micro-batches in a step",
          [](Draft * d) -> auto& { return d->flags.accumulate; }),
      TextFlag(
          "--config", "FILE",
          "DeepSpeed's JSON: optimizer, scheduler, batch, precision, offload",
          [](Draft * d) -> auto& { return d->flags.config; }),
      IntegerFlag(
          "--threads", 1, 4096, "by default every core allowed",
          [](Draft * d) -> auto& { return d->flags.threads; }),
      IntegerFlag(
          "--seed", 0, kMost, "of the weights and the order of text",
          [](Draft * d) -> auto& { return d->flags.seed; }),
      SwitchFlag("--help", "this text", &Flags::help),
  };
}

absl::Status SetBudget(absl::string_view text, Draft* draft) {
  MemoryBudget& budget = draft->flags.budget;
  budget = {};
  if (absl::ConsumeSuffix(&text, "%")) {
    auto percent = ParseNumber("--memory-budget", text, 0.001, 1000);
    if (percent.ok()) budget.percent = *percent;
    return percent.status();
  }
  auto bytes = ParseBytes("--memory-budget", text);
  if (bytes.ok()) budget.bytes = *bytes;
  return bytes.status();
}

absl::Status SetPace(absl::string_view text, Draft* draft) {
  auto pair = ParseBytesPair("--pace", text);
  if (!pair.ok()) return pair.status();
  draft->flags.pace.read_bytes_per_second = pair->first;
  draft->flags.pace.write_bytes_per_second = pair->second;
  return absl::OkStatus();
}

absl::Status AddTier(absl::string_view text, Draft* draft) {
  auto tier = terrace::ParseTier(text);
  if (!tier.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tier: ", tier.status().message()));
  }
  if (tier->kind == terrace::TierKind::kHbm) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--tier: tier '", terrace::TierText(*tier),
        "': the optimizer steps in memory; what it has below is far, pmem and "
        "nvme"));
  }
  draft->flags.tiers.push_back(*std::move(tier));
  return absl::OkStatus();
}

std::vector<FlagSpec> OffloadFlags() {
  using terrace::EngineKind;
  return {
      {"--memory-budget", "BYTES|N%",
       "the optimizer's state in memory, e.g. 64MiB, or 10% of it (also "
       "without this); a share is raised to the least that works",
       SetBudget},
      {"--nvme-path", "PATH",
       "where on disk: a directory, an empty file or a block device; may be "
       "given several times; must exist",
       [](absl::string_view text, Draft* draft) -> absl::Status {
         if (text.empty()) {
           return absl::InvalidArgumentError("--nvme-path takes a path");
         }
         draft->flags.nvme_paths.emplace_back(text);
         return absl::OkStatus();
       }},
      {"--tier", "TEXT",
       "a tier with its budget, e.g. dram=2GiB, far:node2=8GiB, "
       "pmem:/mnt/pmem0=8GiB or nvme:/mnt/nvme0=100GiB, in place of the two "
       "above; may be given several times",
       AddTier},
      TextFlag(
          "--daemon", "SOCKET",
          "of a host's daemon, unix:/run/terrace/control.sock, which has the "
          "memory and the paths",
          [](Draft * d) -> auto& { return d->flags.daemon; }),
      TextFlag(
          "--job", "NAME", "with a daemon: whose quota it is",
          [](Draft * d) -> auto& { return d->flags.job; }),
      SwitchFlag("--unsafe-media",
                 "an ordinary file may play persistent memory: for tests",
                 &Flags::unsafe_media),
      ChoiceFlag<EngineKind>(
          "--io-engine",
          {{"auto", EngineKind::kAuto},
           {"uring", EngineKind::kUring},
           {"threads", EngineKind::kThreads}},
          "what moves the bytes",
          [](Draft * d) -> auto& { return d->flags.engine; }),
      {"--pace", "READ,WRITE",
       "slow each path down to these bytes a second; 0: that direction as it "
       "is",
       SetPace},
      TextFlag(
          "--machine-profile", "FILE", "of terrace tune: what to begin with",
          [](Draft * d) -> auto& { return d->flags.machine_profile; }),
      SwitchFlag("--verify",
                 "train again in memory, twice, and compare: with a serial "
                 "reference bit for bit, with LibTorch's AdamW closely",
                 &Flags::verify),
      TextFlag(
          "--json", "FILE", "write the run's numbers there",
          [](Draft * d) -> auto& { return d->flags.json; }),
  };
}

std::vector<FlagSpec> CheckpointFlags() {
  return {
      TextFlag(
          "--save", "DIR",
          "keep a checkpoint there, at least of the last step; with "
          "--nvme-path or --tier: without them LibTorch's AdamW steps, whose "
          "state and arithmetic are its own",
          [](Draft * d) -> auto& { return d->flags.save; }),
      IntegerFlag(
          "--save-every", 1, 1000000000, "steps from one save to the next",
          [](Draft * d) -> auto& { return d->flags.save_every; }),
      TextFlag(
          "--resume", "DIR", "go on from the checkpoint there",
          [](Draft * d) -> auto& { return d->flags.resume; }),
  };
}

std::vector<FlagSpec> AllFlags() {
  std::vector<FlagSpec> all = ModelFlags();
  for (const auto& group :
       {TrainingFlags(), OptimizerFlags(), OffloadFlags(), CheckpointFlags()}) {
    all.insert(all.end(), group.begin(), group.end());
  }
  return all;
}

absl::Status UnknownFlag(absl::string_view name,
                         const std::vector<FlagSpec>& specs) {
  std::vector<std::string> known;
  for (const FlagSpec& spec : specs) known.push_back(spec.name);
  const std::string nearest = NearestName(name, known);
  if (!absl::StartsWith(name, "-")) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", name, "' is not a flag; flags begin with --"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown flag ", name,
      nearest.empty() ? "; --help lists them"
                      : absl::StrCat("; did you mean ", nearest, "?")));
}

// The short forms of what --tier says.
absl::Status ApplyTiers(const std::set<std::string>& given, Flags* flags) {
  if (flags->tiers.empty()) return absl::OkStatus();
  for (const char* flag : {"--memory-budget", "--nvme-path"}) {
    if (given.count(flag) == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--tier and ", flag, " together: the tiers say it all"));
  }
  bool has_below = false;
  for (const terrace::TierSpec& tier : flags->tiers) {
    has_below = has_below || tier.kind != terrace::TierKind::kDram;
    if (tier.kind == terrace::TierKind::kDram) {
      flags->budget.bytes = tier.budget_bytes;
    } else if (tier.kind == terrace::TierKind::kDisk) {
      flags->nvme_paths.push_back(tier.place);
    }
  }
  if (flags->budget.given() && has_below) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--tier: one of memory, dram=2GiB, and one below it, nvme:/mnt/nvme0, "
      "are needed");
}

// What of the disk is asked for must be asked for whole.
absl::Status CheckOffload(const Flags& flags) {
  if (flags.offloaded() && flags.optimizer == OptimizerKind::kSgd) {
    return absl::InvalidArgumentError(
        absl::StrCat(!flags.tiers.empty()       ? "--tier"
                     : !flags.daemon.empty()    ? "--daemon"
                     : flags.nvme_paths.empty() ? "--memory-budget"
                                                : "--nvme-path",
                     " is for adamw: --optimizer sgd has no state"));
  }
  if (flags.budget.given() && flags.nvme_paths.empty() && flags.tiers.empty() &&
      !flags.parameters_are_below() && flags.daemon.empty()) {
    return absl::InvalidArgumentError(
        "--memory-budget needs --nvme-path: where is the rest to go?");
  }
  if (flags.offloaded()) return absl::OkStatus();
  const auto without = [](const char* flag) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " needs --nvme-path or --tier"));
  };
  if (flags.verify) return without("--verify");
  if (flags.parameters_are_below()) return absl::OkStatus();
  if (flags.unsafe_media) return without("--unsafe-media");
  if (!flags.machine_profile.empty()) return without("--machine-profile");
  if (flags.engine != terrace::EngineKind::kAuto) {
    return without("--io-engine");
  }
  if (flags.pace.read_bytes_per_second + flags.pace.write_bytes_per_second >
      0) {
    return without("--pace");
  }
  return absl::OkStatus();
}

// Preset first, own numbers over it, then what follows from them.
absl::StatusOr<Flags> Resolve(Draft draft, const std::set<std::string>& given) {
  auto shape = PresetShape(draft.size);
  if (!shape.ok()) return shape.status();
  if (draft.width && !draft.heads) shape->heads = DefaultHeads(*draft.width);
  shape->layers = draft.layers.value_or(shape->layers);
  shape->heads = draft.heads.value_or(shape->heads);
  shape->width = draft.width.value_or(shape->width);
  shape->vocab = draft.vocab.value_or(shape->vocab);
  shape->context = draft.context.value_or(shape->context);
  absl::Status status = CheckShape(*shape);
  draft.flags.adam.learning_rate = draft.flags.learning_rate;
  draft.flags.schedule.base = draft.flags.learning_rate;
  if (status.ok()) status = ApplyTiers(given, &draft.flags);
  if (status.ok() && !draft.flags.config.empty()) {
    status = ApplyConfig(given, &draft.flags);
  }
  if (status.ok()) status = CheckOptimizer(given, draft.flags);
  if (!draft.flags.budget.given() &&
      !(draft.flags.nvme_paths.empty() && draft.flags.daemon.empty())) {
    draft.flags.budget.percent = kBudgetPercent;
  }
  if (status.ok()) status = CheckDaemon(given, draft.flags);
  if (status.ok()) status = CheckOffload(draft.flags);
  if (status.ok()) status = CheckParameterPlace(given, draft.flags);
  if (draft.flags.dtype == Dtype::kFloat16 && !draft.flags.loss_scale) {
    draft.flags.loss_scale = terrace::LossScaleSettings();
  }
  draft.flags.skip_nonfinite |= draft.flags.loss_scale.has_value();
  if (status.ok()) status = CheckCheckpoints(draft.flags);
  if (!status.ok()) return status;
  Flags flags = draft.flags;
  flags.shape = *shape;
  flags.seq = draft.seq.value_or(std::min<int64_t>(128, shape->context));
  if (flags.seq > shape->context) {
    return absl::InvalidArgumentError(
        absl::StrCat("--seq ", flags.seq, " is more than the model's context ",
                     "of ", shape->context));
  }
  return flags;
}

}  // namespace

terrace::DType DTypeOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return terrace::DType::kFloat32;
    case Dtype::kBFloat16:
      return terrace::DType::kBFloat16;
    case Dtype::kFloat16:
      return terrace::DType::kFloat16;
  }
  return terrace::DType::kFloat32;
}

int64_t MemoryBudget::Of(int64_t state_bytes) const {
  if (bytes > 0) return bytes;
  return static_cast<int64_t>(static_cast<double>(state_bytes) * percent / 100);
}

absl::StatusOr<Flags> ParseFlags(absl::Span<const std::string> arguments) {
  const std::vector<FlagSpec> specs = AllFlags();
  Draft draft;
  std::set<std::string> given;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const auto spec =
        std::find_if(specs.begin(), specs.end(),
                     [&](const FlagSpec& s) { return s.name == name; });
    if (spec == specs.end()) return UnknownFlag(name, specs);
    given.insert(name);
    std::string text;
    if (equals != std::string::npos) {
      if (spec->value.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat(name, " is a switch and takes no value"));
      }
      text = argument.substr(equals + 1);
    } else if (!spec->value.empty()) {
      if (i + 1 == arguments.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat(name, " needs a value: ", spec->value));
      }
      text = arguments[++i];
    }
    const absl::Status status = spec->set(text, &draft);
    if (!status.ok()) return status;
    if (draft.flags.help) return draft.flags;
  }
  return Resolve(std::move(draft), given);
}

std::string Usage() {
  std::string text =
      "train_gpt: trains a GPT-2 style language model on text.\n\n";
  for (const FlagSpec& spec : AllFlags()) {
    absl::StrAppendFormat(&text, "  %-26s %s\n",
                          absl::StrCat(spec.name, " ", spec.value), spec.help);
  }
  return text;
}

}  // namespace train_gpt
