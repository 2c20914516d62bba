// What a daemon answers as tables of control.fbs, for envelope.cc alone.
#pragma once

#include "absl/status/statusor.h"
#include "daemon/wire/daemon_status.h"
#include "daemon/wire/tables/flat_tables.h"

namespace terrace {

flatbuffers::Offset<flat::Status> WriteStatus(FlatBuilder& builder,
                                              const DaemonStatus& status);
absl::StatusOr<DaemonStatus> ReadStatus(const flat::Status& table,
                                        FlatReader& reader);

flatbuffers::Offset<flat::TensorsPage> WriteTensors(FlatBuilder& builder,
                                                    const TensorsPage& page);
absl::StatusOr<TensorsPage> ReadTensors(const flat::TensorsPage& table,
                                        FlatReader& reader);

flatbuffers::Offset<flat::EvictionReport> WriteEviction(
    FlatBuilder& builder, const EvictionReport& report);
absl::StatusOr<EvictionReport> ReadEviction(const flat::EvictionReport& table,
                                            FlatReader& reader);

}  // namespace terrace
