#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "zero_config/sections.h"

namespace terrace {
namespace {

using NoteKind = ZeroConfigNote::Kind;

// thread_count is in DeepSpeed's documents, num_threads in its tuner's output;
// it reads neither.
absl::Status ReadThreads(KeyValues* values, int64_t* threads) {
  const char* path = "aio.intra_op_parallelism";
  *threads = values->Integer(path);
  bool given = values->Given(path);
  for (const char* alias : {"aio.thread_count", "aio.num_threads"}) {
    if (!values->Given(alias)) continue;
    const int64_t value = values->Integer(alias);
    if (given && value != *threads) {
      return values->Bad(
          alias, absl::StrCat("contradicts ", path, ", which is ", *threads));
    }
    *threads = value;
    given = true;
    values->AddNote(NoteKind::kDeprecated, alias,
                    absl::StrCat("read as ", path,
                                 ", though DeepSpeed ignores it; sized by "
                                 "Terrace: one thread keeps every path busy"));
  }
  return absl::OkStatus();
}

absl::Status ReadReduction(const ZeroConfigCaller& caller,
                           const ZeroConfigSettings& settings,
                           KeyValues* values) {
  const char* op = "gradient_allreduce_op";
  const bool sum = values->Text(op) == "sum";
  if (sum && settings.stage == 3) return values->Bad(op, "not at stage 3");
  const char* factor = "gradient_predivide_factor";
  if (values->Number(factor) == 0) {
    return values->Bad(factor, "allowed: a number above 0");
  }
  const char* type = "communication_data_type";
  const char* prescale = "prescale_gradients";
  const bool same_type =
      !values->Given(type) ||
      values->Text(type) == DTypeName(settings.parameter_dtype);
  if (caller.world_size == 1) {
    for (const char* path : {op, factor, type, prescale}) {
      if (!values->Given(path)) continue;
      values->AddNote(NoteKind::kIgnored, path,
                      "accepted; no effect here: one rank reduces nothing");
    }
    return absl::OkStatus();
  }
  if (sum) {
    return values->NotBuilt(op,
                            "ranks' gradients are averaged; allowed: "
                            "\"mean\"");
  }
  if (!same_type) {
    return values->NotBuilt(
        type, absl::StrCat("gradients travel as they are; allowed: \"",
                           DTypeName(settings.parameter_dtype), "\" or null"));
  }
  if (values->Boolean(prescale)) {
    return values->NotBuilt(prescale,
                            "sums are divided once, afterwards; allowed: "
                            "false");
  }
  if (values->Number(factor) != 1) {
    return values->NotBuilt(factor,
                            "sums are divided once, afterwards; allowed: 1");
  }
  return absl::OkStatus();
}

// A folder that only the ranks of one node see.
absl::Status CheckNodeLocal(const ZeroConfigCaller& caller, KeyValues* values) {
  const char* path = "checkpoint.use_node_local_storage";
  if (!values->Boolean(path)) return absl::OkStatus();
  if (caller.world_size > 1) {
    return values->NotBuilt(
        path, "a checkpoint is one folder that all ranks see; allowed: false");
  }
  values->AddNote(NoteKind::kIgnored, path,
                  "accepted; no effect here: one rank sees every folder that "
                  "it saves to");
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadTheRest(const ZeroConfigCaller& caller, KeyValues* values,
                         ZeroConfigSettings* settings) {
  AioSettings& aio = settings->aio;
  aio.block_size = values->Integer("aio.block_size");
  aio.queue_depth = values->Integer("aio.queue_depth");
  TERRACE_RETURN_IF_ERROR(ReadThreads(values, &aio.intra_op_parallelism));
  aio.single_submit = values->Boolean("aio.single_submit");
  aio.overlap_events = values->Boolean("aio.overlap_events");
  const std::string validation = values->Text("checkpoint.tag_validation");
  settings->tag_validation = validation == "FAIL"     ? TagValidation::kFail
                             : validation == "IGNORE" ? TagValidation::kIgnore
                                                      : TagValidation::kWarn;
  TERRACE_RETURN_IF_ERROR(CheckNodeLocal(caller, values));
  const char* norm = "zero_optimization.compute_grad_norm";
  if (!values->Boolean(norm) && settings->max_gradient_norm > 0) {
    return values->Bad(norm, "false needs gradient_clipping 0");
  }
  return ReadReduction(caller, *settings, values);
}

}  // namespace terrace
