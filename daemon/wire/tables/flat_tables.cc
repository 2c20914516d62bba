#include "daemon/wire/tables/flat_tables.h"

#include "absl/strings/cord.h"

namespace terrace {

flatbuffers::Offset<flat::Outcome> WriteOutcome(FlatBuilder& builder,
                                                const absl::Status& status) {
  std::vector<flatbuffers::Offset<flat::Payload>> payloads;
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    const std::string bytes(payload);
    const auto name = builder.CreateString(url.data(), url.size());
    const auto value = builder.CreateVector(
        reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    payloads.push_back(flat::CreatePayload(builder, name, value));
  });
  const absl::string_view text = status.message();
  const auto message = builder.CreateString(text.data(), text.size());
  return flat::CreateOutcome(builder, static_cast<int32_t>(status.code()),
                             message, builder.CreateVector(payloads));
}

absl::Status ReadOutcome(const flat::Outcome* table, FlatReader& reader,
                         absl::string_view field, absl::Status* status) {
  if (table == nullptr) return WrongMessage(absl::StrCat("has no ", field));
  const int32_t code = table->code();
  const auto most = static_cast<int32_t>(absl::StatusCode::kUnauthenticated);
  if (code < 0 || code > most) {
    return WrongMessage(absl::StrCat("has a ", field, " of the code ", code));
  }
  TERRACE_ASSIGN_OR_RETURN(const std::string message,
                           reader.Text(table->message(), "reason"));
  *status = absl::Status(static_cast<absl::StatusCode>(code), message);
  if (table->payloads() == nullptr) return absl::OkStatus();
  TERRACE_RETURN_IF_ERROR(
      reader.Take(table->payloads()->size() * sizeof(flat::Payload)));
  for (const flat::Payload* const each : *table->payloads()) {
    TERRACE_ASSIGN_OR_RETURN(const std::string url,
                             reader.Text(each->url(), "payload's name"));
    std::vector<uint8_t> bytes;
    TERRACE_RETURN_IF_ERROR(reader.Numbers(each->bytes(), "payload", &bytes));
    const absl::string_view value(reinterpret_cast<const char*>(bytes.data()),
                                  bytes.size());
    if (!status->ok()) status->SetPayload(url, absl::Cord(value));
  }
  return absl::OkStatus();
}

int64_t NanosOf(absl::Time time) { return absl::ToUnixNanos(time); }

absl::Time TimeOf(int64_t nanos) {
  if (nanos == INT64_MAX) return absl::InfiniteFuture();
  if (nanos == INT64_MIN) return absl::InfinitePast();
  return absl::FromUnixNanos(nanos);
}

}  // namespace terrace
