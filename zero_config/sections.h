// What several keys mean together: one reader for each part of the settings.
// Each writes only its own fields and may add notes; the first error ends the
// reading. Pure functions.
#pragma once

#include "absl/status/status.h"
#include "terrace/zero_config.h"
#include "zero_config/keys/json_tree.h"
#include "zero_config/keys/key_values.h"

namespace terrace {

// Terrace's own, beside DeepSpeed's.
inline constexpr char kDaemonKey[] = "terrace.daemon";

// optimizer.type and scheduler.type, before their params are read by the
// table: those of a type that is not built must not be called unknown.
absl::Status CheckOptimizerType(const ZeroConfigCaller& caller,
                                const JsonValue& root);
// Of one of the caller's optimizers: takes its params out of the text.
absl::Status TakeCallersOptimizer(const ZeroConfigCaller& caller,
                                  JsonValue* root,
                                  ZeroConfigSettings* settings);
absl::Status CheckSchedulerType(const JsonValue& root);

absl::Status ReadActivations(const ZeroConfigCaller& caller, KeyValues* values,
                             ZeroConfigSettings* settings);
// After ReadActivations.
absl::Status ReadZero(const ZeroConfigCaller& caller, KeyValues* values,
                      ZeroConfigSettings* settings);
// After ReadZero.
absl::Status ReadZenflow(const KeyValues& values,
                         const ZeroConfigSettings& settings);
absl::Status ReadPrecision(const ZeroConfigCaller& caller, KeyValues* values,
                           ZeroConfigSettings* settings);
absl::Status ReadBatch(const ZeroConfigCaller& caller, KeyValues* values,
                       ZeroConfigSettings* settings);
// After ReadBatch.
absl::Status CheckAccumulation(const KeyValues& values,
                               const ZeroConfigSettings& settings);
// After ReadPrecision.
absl::Status ReadOptimizer(const ZeroConfigCaller& caller, KeyValues* values,
                           ZeroConfigSettings* settings);
// After ReadOptimizer.
absl::Status ReadSchedule(const ZeroConfigCaller& caller, KeyValues* values,
                          ZeroConfigSettings* settings);
// aio, checkpoint, and how ranks reduce. After ReadZero and ReadPrecision.
absl::Status ReadTheRest(const ZeroConfigCaller& caller, KeyValues* values,
                         ZeroConfigSettings* settings);

}  // namespace terrace
