#include "runtime/messages/ports.h"

#include "runtime/messages/untaken_groups.h"

namespace terrace {

std::shared_ptr<Port> Ports::Open() {
  MutexLock lock(mutex_);
  const ClientId client = NextClient();
  auto port = std::make_shared<Port>(client, pins_);
  clients_[client] = port;
  return port;
}

ClientId Ports::Join(const std::shared_ptr<ClientSink>& sink) {
  MutexLock lock(mutex_);
  const ClientId client = NextClient();
  clients_[client] = sink;
  return client;
}

ClientId Ports::NextClient() {
  absl::erase_if(clients_,
                 [](const auto& each) { return each.second.expired(); });
  return next_++;
}

void Ports::Deliver(RequestId id, Answer answer) const {
  if (id.empty()) return;
  const std::shared_ptr<ClientSink> client = Find(id.client);
  if (client != nullptr) client->Deliver(id.number, std::move(answer));
}

std::shared_ptr<QueueSink> Ports::OpenQueue(ClientId client,
                                            int64_t queue) const {
  const std::shared_ptr<ClientSink> found = Find(client);
  if (found != nullptr) return found->OpenQueue(queue);
  return std::make_shared<QueuePort>(pins_);
}

std::shared_ptr<ByteSink> Ports::OpenBytes(ClientId client,
                                           int64_t queue) const {
  const std::shared_ptr<ClientSink> found = Find(client);
  if (found != nullptr) return found->OpenBytes(queue);
  return std::make_shared<BytePort>(pins_);
}

void Ports::EndUntaken(std::vector<ReadyGroup>& untaken) const {
  EndUntakenGroups(untaken, *pins_);
}

std::shared_ptr<ClientSink> Ports::Find(ClientId client) const {
  MutexLock lock(mutex_);
  const auto found = clients_.find(client);
  return found == clients_.end() ? nullptr : found->second.lock();
}

}  // namespace terrace
