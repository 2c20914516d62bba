#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "zero_config/caller_numbers.h"
#include "zero_config/keys/nearest_name.h"
#include "zero_config/sections.h"

namespace terrace {
namespace {

using ScheduleKind = LearningRateSchedule::Kind;
using NoteKind = ZeroConfigNote::Kind;

constexpr char kSchedulerType[] = "scheduler.type";

struct Scheduler {
  std::string name;
  ScheduleKind kind;
  std::vector<std::string> params;  // besides last_batch_iteration
};

const std::vector<Scheduler>& KnownSchedulers() {
  static const std::vector<Scheduler> known = {
      {"WarmupLR",
       ScheduleKind::kWarmup,
       {"warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type"}},
      {"WarmupDecayLR",
       ScheduleKind::kWarmupDecay,
       {"total_num_steps", "warmup_min_lr", "warmup_max_lr", "warmup_num_steps",
        "warmup_type"}},
      {"WarmupCosineLR",
       ScheduleKind::kWarmupCosine,
       {"total_num_steps", "warmup_min_ratio", "warmup_num_steps",
        "cos_min_ratio", "warmup_type"}},
      {"LRRangeTest",
       ScheduleKind::kRangeTest,
       {"lr_range_test_min_lr", "lr_range_test_step_size",
        "lr_range_test_step_rate", "lr_range_test_staircase"}},
      {"OneCycle",
       ScheduleKind::kOneCycle,
       {"cycle_min_lr", "cycle_max_lr", "decay_lr_rate",
        "cycle_first_step_size", "cycle_second_step_size",
        "cycle_first_stair_count", "cycle_second_stair_count",
        "decay_step_size", "cycle_momentum", "cycle_min_mom", "cycle_max_mom",
        "decay_mom_rate"}},
  };
  return known;
}

std::string Names() {
  std::vector<std::string> names;
  for (const Scheduler& one : KnownSchedulers()) names.push_back(one.name);
  return absl::StrCat("\"", absl::StrJoin(names, "\", \""), "\"");
}

std::string Param(absl::string_view name) {
  return absl::StrCat("scheduler.params.", name);
}

// The text's number, else the caller's argument of that name. Error: neither.
absl::Status Required(const ZeroConfigCaller& caller, const KeyValues& values,
                      const char* name, const std::optional<int64_t>& callers,
                      int64_t* value) {
  const std::string path = Param(name);
  if (values.Given(path)) {
    *value = static_cast<int64_t>(values.Number(path));
    return absl::OkStatus();
  }
  if (const auto filled = FilledIn(caller, name, callers, values, path)) {
    *value = *filled;
    return absl::OkStatus();
  }
  if (values.IsAuto(path)) {
    return values.Bad(
        path,
        absl::StrCat("the caller gave no value for it; pass ", name, "="));
  }
  return values.Bad("scheduler", absl::StrCat("needs ", path));
}

double Optional(const ZeroConfigCaller& caller, const KeyValues& values,
                const char* name, const std::optional<double>& callers,
                double otherwise) {
  const std::string path = Param(name);
  if (values.Given(path)) return values.Number(path);
  return FilledIn(caller, name, callers, values, path).value_or(otherwise);
}

// Numbers of a warm-up for a scheduler that has none of these parameters. The
// length of a run is known to every caller, whether its schedule ends or not.
void NoteUnused(const ZeroConfigCaller& caller,
                const std::vector<std::string>& params, KeyValues* values) {
  std::vector<std::string> unused;
  const auto check = [&](const char* name, bool passed) {
    if (passed && caller.defaults.count(name) == 0 &&
        std::find(params.begin(), params.end(), name) == params.end()) {
      unused.push_back(absl::StrCat(name, "="));
    }
  };
  check("warmup_min_lr", caller.warmup_min_lr.has_value());
  check("warmup_max_lr", caller.warmup_max_lr.has_value());
  check("warmup_num_steps", caller.warmup_num_steps.has_value());
  if (unused.empty()) return;
  values->AddNote(
      NoteKind::kIgnored, "scheduler",
      absl::StrCat(
          "has no use for the caller's ", absl::StrJoin(unused, ", "),
          values->Given(kSchedulerType) ? "" : ": it is not in the text"));
}

absl::Status ReadWarmup(const ZeroConfigCaller& caller, KeyValues* values,
                        LearningRateSchedule* schedule) {
  LearningRateSchedule& s = *schedule;
  const std::string type = values->Text(Param("warmup_type"));
  s.logarithmic = type != "linear";
  if (s.logarithmic && type != "log") {
    values->AddNote(NoteKind::kMeaning, Param("warmup_type"),
                    "neither \"log\" nor \"linear\": read as \"log\", as in "
                    "DeepSpeed");
  }
  s.warmup_steps = 1000;
  const char* name = "warmup_num_steps";
  const std::string steps = Param(name);
  if (values->Given(steps) || values->IsAuto(steps) ||
      FilledIn(caller, name, caller.warmup_num_steps, *values, steps)) {
    TERRACE_RETURN_IF_ERROR(Required(caller, *values, name,
                                     caller.warmup_num_steps, &s.warmup_steps));
  }
  if (s.warmup_steps < 2) {
    values->AddNote(NoteKind::kMeaning, steps, "at least 2, as in DeepSpeed");
    s.warmup_steps = 2;
  }
  if (s.kind != ScheduleKind::kWarmup) {
    TERRACE_RETURN_IF_ERROR(Required(caller, *values, "total_num_steps",
                                     caller.total_num_steps, &s.total_steps));
    if (s.total_steps < s.warmup_steps) {
      values->AddNote(NoteKind::kMeaning, Param("total_num_steps"),
                      absl::StrCat(s.total_steps, " is less than ", steps, " ",
                                   s.warmup_steps));
    }
  }
  if (s.kind == ScheduleKind::kWarmupCosine) {
    s.least_ratio = values->Number(Param("warmup_min_ratio"));
    s.cosine_ratio = values->Number(Param("cos_min_ratio"));
    return absl::OkStatus();
  }
  // Without a value: WarmupLR takes the optimizer's rate, WarmupDecayLR 0.001.
  const bool own =
      s.kind == ScheduleKind::kWarmup || values->IsAuto(Param("warmup_max_lr"));
  s.least = Optional(caller, *values, "warmup_min_lr", caller.warmup_min_lr, 0);
  s.most = Optional(caller, *values, "warmup_max_lr", caller.warmup_max_lr,
                    own ? s.base : 1e-3);
  return absl::OkStatus();
}

void ReadRangeTest(const KeyValues& values, LearningRateSchedule* schedule) {
  schedule->least = values.Number(Param("lr_range_test_min_lr"));
  schedule->step_size = values.Integer(Param("lr_range_test_step_size"));
  schedule->rate = values.Number(Param("lr_range_test_step_rate"));
  schedule->staircase = values.Boolean(Param("lr_range_test_staircase"));
}

absl::Status ReadOneCycle(const KeyValues& values,
                          LearningRateSchedule* schedule) {
  LearningRateSchedule& s = *schedule;
  const std::string decay = Param("decay_mom_rate");
  s.cycles_momentum = values.Boolean(Param("cycle_momentum"));
  s.least_momentum = values.Number(Param("cycle_min_mom"));
  s.most_momentum = values.Number(Param("cycle_max_mom"));
  for (const char* name : {"cycle_min_mom", "cycle_max_mom"}) {
    if (values.Number(Param(name)) < 1) continue;
    return values.Bad(Param(name), "allowed: a number of at least 0, below 1");
  }
  if (s.cycles_momentum && values.Number(decay) > 0) {
    return values.NotBuilt(decay,
                           "the first beta would grow past 1; allowed: 0");
  }
  for (const char* name : {"cycle_min_lr", "cycle_max_lr"}) {
    if (values.Given(Param(name))) continue;
    return values.Bad("scheduler",
                      absl::StrCat("needs a number as ", Param(name)));
  }
  s.least = values.Number(Param("cycle_min_lr"));
  s.most = values.Number(Param("cycle_max_lr"));
  const std::string second = Param("cycle_second_step_size");
  const std::string stairs = Param("cycle_second_stair_count");
  s.first_steps = values.Integer(Param("cycle_first_step_size"));
  s.second_steps =
      values.Given(second) ? values.Integer(second) : s.first_steps;
  s.first_stairs = values.Integer(Param("cycle_first_stair_count"));
  s.second_stairs =
      values.Given(stairs) ? values.Integer(stairs) : s.first_stairs;
  s.decay_steps = values.Integer(Param("decay_step_size"));
  s.rate = values.Number(Param("decay_lr_rate"));
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSchedulerType(const JsonValue& root) {
  const JsonValue* section = root.Find("scheduler");
  const JsonValue* type = section == nullptr ? nullptr : section->Find("type");
  if (type == nullptr || type->kind != JsonValue::Kind::kText ||
      type->text.empty() || type->text == "auto") {
    return absl::OkStatus();  // for the table to say
  }
  std::vector<std::string> names;
  for (const Scheduler& one : KnownSchedulers()) {
    if (one.name == type->text) return absl::OkStatus();
    names.push_back(one.name);
  }
  const std::string where = absl::StrCat(
      kSchedulerType, ": ", Shortened(JsonText(*type)), LineText(type->line));
  const std::string hint = DidYouMean(type->text, names);
  if (!hint.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, " is no scheduler", hint));
  }
  return absl::UnimplementedError(
      absl::StrCat(where, " is not built; allowed: ", Names()));
}

absl::Status ReadSchedule(const ZeroConfigCaller& caller, KeyValues* values,
                          ZeroConfigSettings* settings) {
  if (!values->Given("scheduler")) {
    NoteUnused(caller, {}, values);
    return absl::OkStatus();
  }
  if (!values->Given(kSchedulerType)) {
    return values->Bad("scheduler", absl::StrCat("needs a type: ", Names()));
  }
  const std::string type = values->Text(kSchedulerType);
  const auto one =
      std::find_if(KnownSchedulers().begin(), KnownSchedulers().end(),
                   [&](const Scheduler& known) { return known.name == type; });
  for (const std::string& name : values->GivenBelow("scheduler.params")) {
    if (name == "last_batch_iteration") continue;
    if (std::find(one->params.begin(), one->params.end(), name) ==
        one->params.end()) {
      return values->Bad(Param(name),
                         absl::StrCat(type, " has no such parameter",
                                      Suggestion(name, one->params)));
    }
  }
  NoteUnused(caller, one->params, values);
  LearningRateSchedule& schedule = settings->schedule;
  schedule.kind = one->kind;
  const std::string most = Param("warmup_max_lr");
  const bool needs_base =
      one->kind == ScheduleKind::kWarmupCosine ||
      (one->kind == ScheduleKind::kWarmup && !values->Given(most) &&
       !FilledIn(caller, "warmup_max_lr", caller.warmup_max_lr, *values, most));
  const bool has_base =
      settings->adam || caller.learning_rate ||
      (settings->callers.optimizer && settings->schedule.base > 0);
  if (needs_base && !has_base) {
    return values->Bad("scheduler",
                       "needs the optimizer's learning rate: there is none "
                       "here; pass learning_rate=");
  }
  switch (one->kind) {
    case ScheduleKind::kRangeTest:
      ReadRangeTest(*values, &schedule);
      return absl::OkStatus();
    case ScheduleKind::kOneCycle:
      return ReadOneCycle(*values, &schedule);
    default:
      return ReadWarmup(caller, values, &schedule);
  }
}

}  // namespace terrace
