#include "daemon/wire/tables/news_tables.h"

#include <utility>

#include "daemon/wire/tables/stats_tables.h"

namespace terrace {
namespace {

// The shortest entry of a message, of which there may be thousands: its place
// in the list, its kind and a table of one number.
constexpr size_t kLeastEntryBytes = 28;
static_assert(sizeof(JobNewsEntry) <= FlatReader::kGrowth * kLeastEntryBytes);

using WrittenNews = FlatMember<flat::News>;
using WrittenAnswer = FlatMember<flat::AnswerBody>;

WrittenAnswer WriteBody(FlatBuilder& builder, const absl::Status& status) {
  return {flat::AnswerBody::Outcome, WriteOutcome(builder, status).Union()};
}

WrittenAnswer WriteBody(FlatBuilder& builder,
                        const std::vector<TensorId>& tensors) {
  std::vector<int64_t> ids;
  ids.reserve(tensors.size());
  for (const TensorId each : tensors) ids.push_back(each.value);
  const auto list = builder.CreateVector(ids);
  return {flat::AnswerBody::Tensors,
          flat::CreateTensors(builder, list).Union()};
}

WrittenAnswer WriteBody(FlatBuilder& builder, const OpenedQueue& opened) {
  return {flat::AnswerBody::Opened,
          flat::CreateOpened(builder, opened.id,
                             static_cast<uint8_t>(opened.tier.kind),
                             opened.tier.number)
              .Union()};
}

WrittenAnswer WriteBody(FlatBuilder& builder, const Stats& stats) {
  return {flat::AnswerBody::Stats, WriteStats(builder, stats).Union()};
}

// The daemon's own, which no process asks for.
WrittenAnswer WriteBody(FlatBuilder& builder, const TensorPage& /*page*/) {
  return WriteBody(builder, absl::InternalError("a page of tensors"));
}

WrittenAnswer WriteBody(FlatBuilder& builder, const Evicted& /*evicted*/) {
  return WriteBody(builder, absl::InternalError("what was evicted"));
}

WrittenAnswer WriteBody(FlatBuilder& builder, const Lent& /*lent*/) {
  return WriteBody(builder, absl::InternalError("what was lent"));
}

WrittenNews Write(FlatBuilder& builder, const AnswerNews& news) {
  const WrittenAnswer body = std::visit(
      [&builder](const auto& each) { return WriteBody(builder, each); },
      news.answer);
  return {
      flat::News::Answer,
      flat::CreateAnswer(builder, news.number, body.kind, body.table).Union()};
}

flatbuffers::Offset<flat::Group> Write(FlatBuilder& builder,
                                       const ReadyGroup& group) {
  flatbuffers::Offset<flatbuffers::Vector<const flat::Grant*>> grants;
  flatbuffers::Offset<flat::Outcome> failure;
  if (group.grants.ok()) {
    std::vector<flat::Grant> list;
    list.reserve(group.grants->size());
    for (const Grant& each : *group.grants) {
      list.emplace_back(each.token, each.tensor.value, each.offset,
                        each.size_bytes);
    }
    grants = builder.CreateVectorOfStructs(list);
  } else {
    failure = WriteOutcome(builder, group.grants.status());
  }
  flatbuffers::Offset<flatbuffers::Vector<uint64_t>> recalls;
  if (!group.recalls.empty()) recalls = builder.CreateVector(group.recalls);
  return flat::CreateGroup(builder, group.tag, grants, failure,
                           static_cast<uint8_t>(group.cause), group.ahead,
                           group.beyond_bytes, recalls);
}

auto WriteGroups(FlatBuilder& builder, const std::vector<ReadyGroup>& all) {
  std::vector<flatbuffers::Offset<flat::Group>> groups;
  groups.reserve(all.size());
  for (const ReadyGroup& each : all) groups.push_back(Write(builder, each));
  return builder.CreateVector(groups);
}

WrittenNews Write(FlatBuilder& builder, const BytesNews& news) {
  const auto groups = WriteGroups(builder, news.groups);
  const auto recalls = builder.CreateVector(news.recalls);
  return {flat::News::BytesNews,
          flat::CreateBytesNews(builder, news.queue, groups, recalls).Union()};
}

WrittenNews Write(FlatBuilder& builder, const QueueNews& news) {
  const auto list = WriteGroups(builder, news.groups);
  const auto also = WriteOutcome(builder, news.blocked_also);
  return {flat::News::QueueNews,
          flat::CreateQueueNews(builder, news.queue, list,
                                news.blocked_by_own_pins, news.processed, also)
              .Union()};
}

WrittenNews Write(FlatBuilder& builder, const QueueClosed& news) {
  return {flat::News::QueueClosed,
          flat::CreateQueueClosed(builder, news.queue).Union()};
}

WrittenNews Write(FlatBuilder& builder, const QueueGone& news) {
  return {flat::News::QueueGone,
          flat::CreateQueueGone(builder, news.queue).Union()};
}

WrittenNews Write(FlatBuilder& builder, const LastStats& news) {
  const auto stats = WriteStats(builder, news.stats);
  return {flat::News::LastStats, flat::CreateLastStats(builder, stats).Union()};
}

absl::StatusOr<Answer> ReadAnswer(const flat::Answer& table,
                                  FlatReader& reader) {
  if (table.body() == nullptr) return WrongMessage("has an empty answer");
  switch (table.body_type()) {
    case flat::AnswerBody::Outcome: {
      absl::Status status;
      TERRACE_RETURN_IF_ERROR(
          ReadOutcome(table.body_as_Outcome(), reader, "outcome", &status));
      return Answer(std::move(status));
    }
    case flat::AnswerBody::Tensors: {
      std::vector<int64_t> ids;
      TERRACE_RETURN_IF_ERROR(reader.Numbers(table.body_as_Tensors()->ids(),
                                             "list of tensors", &ids));
      std::vector<TensorId> tensors;
      tensors.reserve(ids.size());
      for (const int64_t id : ids) tensors.push_back(TensorId{id});
      return Answer(std::move(tensors));
    }
    case flat::AnswerBody::Opened: {
      const flat::Opened& opened = *table.body_as_Opened();
      TERRACE_ASSIGN_OR_RETURN(
          const TierKind kind,
          EnumOf(opened.tier_kind(), TierKind::kDisk, "queue's tier"));
      return Answer(OpenedQueue{opened.queue(), {kind, opened.tier_number()}});
    }
    case flat::AnswerBody::Stats: {
      TERRACE_ASSIGN_OR_RETURN(Stats stats,
                               ReadStats(*table.body_as_Stats(), reader));
      return Answer(std::move(stats));
    }
    case flat::AnswerBody::NONE:
      break;
  }
  return WrongMessage(absl::StrCat("has an answer of the unknown kind ",
                                   static_cast<int>(table.body_type())));
}

absl::StatusOr<JobNewsEntry> Read(const flat::Answer& table,
                                  FlatReader& reader) {
  AnswerNews news;
  news.number = table.number();
  TERRACE_ASSIGN_OR_RETURN(news.answer, ReadAnswer(table, reader));
  return news;
}

absl::StatusOr<ReadyGroup> Read(const flat::Group& table, FlatReader& reader) {
  ReadyGroup group;
  group.tag = table.tag();
  group.ahead = table.ahead();
  group.beyond_bytes = table.beyond_bytes();
  if (table.recalls() != nullptr) {
    TERRACE_RETURN_IF_ERROR(
        reader.Numbers(table.recalls(), "recalls", &group.recalls));
  }
  TERRACE_ASSIGN_OR_RETURN(
      group.cause, EnumOf(table.cause(), WaitCause::kSpace, "wait's cause"));
  if (table.failure() != nullptr) {
    absl::Status failure;
    TERRACE_RETURN_IF_ERROR(
        ReadOutcome(table.failure(), reader, "failure", &failure));
    if (failure.ok()) return WrongMessage("has a failure that is none");
    group.grants = std::move(failure);
    return group;
  }
  std::vector<Grant> grants;
  TERRACE_RETURN_IF_ERROR(reader.Structs(
      table.grants(), "pins",
      [](const flat::Grant& each) {
        return Grant{each.token(), TensorId{each.tensor()}, each.offset(),
                     each.size_bytes()};
      },
      &grants));
  group.grants = Grants(grants.begin(), grants.end());
  return group;
}

absl::Status ReadGroups(const FlatTables<flat::Group>* tables,
                        FlatReader& reader, std::vector<ReadyGroup>* groups) {
  return reader.Tables(
      tables, "groups",
      [&reader](const flat::Group& each) { return Read(each, reader); },
      groups);
}

absl::StatusOr<JobNewsEntry> Read(const flat::QueueNews& table,
                                  FlatReader& reader) {
  QueueNews news;
  news.queue = table.queue();
  news.blocked_by_own_pins = table.blocked_by_own_pins();
  news.processed = table.processed();
  TERRACE_RETURN_IF_ERROR(ReadGroups(table.groups(), reader, &news.groups));
  TERRACE_RETURN_IF_ERROR(ReadOutcome(table.blocked_also(), reader,
                                      "queue's block", &news.blocked_also));
  return news;
}

absl::StatusOr<JobNewsEntry> Read(const flat::BytesNews& table,
                                  FlatReader& reader) {
  BytesNews news;
  news.queue = table.queue();
  TERRACE_RETURN_IF_ERROR(ReadGroups(table.groups(), reader, &news.groups));
  TERRACE_RETURN_IF_ERROR(
      reader.Numbers(table.recalls(), "recalls", &news.recalls));
  return news;
}

absl::StatusOr<JobNewsEntry> Read(const flat::LastStats& table,
                                  FlatReader& reader) {
  if (table.stats() == nullptr) return WrongMessage("has no stats");
  TERRACE_ASSIGN_OR_RETURN(Stats stats, ReadStats(*table.stats(), reader));
  return LastStats{std::move(stats)};
}

absl::StatusOr<JobNewsEntry> Read(const flat::NewsEntry& entry,
                                  FlatReader& reader) {
  if (entry.news() == nullptr) return WrongMessage("has empty news");
  switch (entry.news_type()) {
    case flat::News::Answer:
      return Read(*entry.news_as_Answer(), reader);
    case flat::News::QueueNews:
      return Read(*entry.news_as_QueueNews(), reader);
    case flat::News::QueueClosed:
      return QueueClosed{entry.news_as_QueueClosed()->queue()};
    case flat::News::QueueGone:
      return QueueGone{entry.news_as_QueueGone()->queue()};
    case flat::News::BytesNews:
      return Read(*entry.news_as_BytesNews(), reader);
    case flat::News::LastStats:
      return Read(*entry.news_as_LastStats(), reader);
    case flat::News::NONE:
      break;
  }
  return WrongMessage(absl::StrCat("has news of the unknown kind ",
                                   static_cast<int>(entry.news_type())));
}

}  // namespace

flatbuffers::Offset<flat::JobNews> WriteNews(FlatBuilder& builder,
                                             const JobNews& news) {
  std::vector<flatbuffers::Offset<flat::NewsEntry>> entries;
  entries.reserve(news.entries.size());
  for (const JobNewsEntry& each : news.entries) {
    const WrittenNews written = std::visit(
        [&builder](const auto& body) { return Write(builder, body); }, each);
    entries.push_back(
        flat::CreateNewsEntry(builder, written.kind, written.table));
  }
  const auto list = builder.CreateVector(entries);
  return flat::CreateJobNews(builder, list, news.processed);
}

absl::StatusOr<JobNews> ReadNews(const flat::JobNews& table,
                                 FlatReader& reader) {
  JobNews news;
  news.processed = table.processed();
  TERRACE_RETURN_IF_ERROR(reader.Tables(
      table.news(), "news",
      [&reader](const flat::NewsEntry& each) { return Read(each, reader); },
      &news.entries));
  return news;
}

}  // namespace terrace
