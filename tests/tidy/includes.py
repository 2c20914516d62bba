"""What may include what, and through which door a foreign library comes in."""

import re

API = 'include/terrace'

# Layer -> the layers, and single headers, that it may include, itself aside. A
# file belongs to the longest prefix of its path; None: may include anything.
LAYERS = {
    API: [],
    'base': [API],
    'kernels': [API, 'base'],
    'aio': [API, 'base'],
    'policies': [API, 'base'],
    'tiers': [API, 'base', 'kernels', 'aio'],
    # Above the others: it marks and locks by the rules that disk paths have.
    'tiers/pmem': [API, 'base', 'tiers'],
    'prefetch': [API, 'base', 'policies'],
    'runtime': [API, 'base', 'kernels', 'aio', 'policies', 'tiers',
                'tiers/pmem', 'prefetch', 'machine/profile/tuning.h'],
    # What is made of the public interface has no private door to the core; of
    # mechanisms, only those named here.
    'optimizer': [API, 'base', 'kernels'],
    'checkpoint': [API, 'base', 'kernels/checksum.h',
                           'tiers/system_error.h'],
    # It reports what the mechanisms find, and measures them.
    'machine': [API, 'base', 'kernels', 'aio',
                        'tiers/memory/host_arena.h', 'tiers/memory/process_memory.h',
                        'tiers/system_error.h', 'tiers/memory/topology.h',
                        'tiers/memory/far_medium.h', 'tiers/pmem/pmem_probe.h',
                        'tiers/pmem/pmem_medium.h', 'tiers/medium.h'],
    'zero_config': [API, 'base', 'tiers/memory/topology.h'],
    # The module of LibTorch's CUDA answers CUDA's calls too.
    'libtorch': [API, 'base', 'checkpoint/weight_files.h',
                 'kernels/cuda/cuda_calls.h', 'kernels/cuda/current_device.h'],
    'daemon': [API, 'base', 'daemon/config', 'daemon/wire', 'daemon/client',
               'daemon/jobs', 'daemon/links', 'daemon/log', 'daemon/watch',
               'daemon/metrics',
               'tiers/system_error.h',
               'tiers/memory/host_arena.h'],
    'daemon/config': [API, 'base', 'tiers/system_error.h'],
    # A runtime's messages are what passes between a daemon and its clients.
    'daemon/wire': [API, 'base', 'tiers/system_error.h',
                    'runtime/messages/answers.h',
                    'runtime/messages/request_id.h',
                    'runtime/messages/requests.h'],
    'daemon/client': [API, 'base', 'daemon/wire', 'daemon/watch/loop_page.h',
                      'tiers/system_error.h',
                      'tiers/left_behind.h', 'runtime/messages/inbox.h',
                      'runtime/messages/port.h',
                      'runtime/client/asking_runtime.h'],
    # What these share of a host's disks.
    'daemon/links': [API, 'base', 'daemon/config', 'aio/engine.h',
                     'aio/io_transfer.h', 'aio/queue/in_flight_limits.h',
                     'aio/queue/in_flight_use.h', 'aio/queue/link_share.h'],
    # It looks at words alone, and knows nothing of what the loops do.
    'daemon/watch': [API, 'base', 'daemon/wire/poll_timeout.h',
                     'daemon/wire/wake_event.h'],
    'daemon/log': [API, 'base', 'daemon/watch'],
    'daemon/metrics': [API, 'base', 'daemon/wire', 'daemon/config',
                       'daemon/watch', 'daemon/jobs/job_totals.h',
                       'tiers/system_error.h'],
    # The runtimes that a daemon has for its clients.
    'daemon/jobs': [API, 'base', 'daemon/wire', 'daemon/config',
                    'daemon/links', 'daemon/watch', 'runtime/background_thread.h',
                    'runtime/local_parts.h', 'runtime/local_runtime.h',
                    'runtime/memory/compute_threads.h',
                    'runtime/messages/answer_sinks.h',
                    'runtime/messages/intake.h',
                    'runtime/messages/request_id.h',
                    'runtime/tensor/image_keeper.h',
                    'runtime/tensor/runtime_image.h',
                    'runtime/tensor/tensor_life.h', 'tiers/disk/disk_file.h',
                    'tiers/disk/kept_file.h', 'tiers/growth/growth.h',
                    'tiers/medium.h', 'tiers/memory/far_medium.h',
                    'tiers/memory/topology.h', 'tiers/pmem/pmem_medium.h',
                    'tiers/memory/host_arena.h',
                    'tiers/memory/page_source.h',
                    'tiers/memory/spill/shared_spill.h',
                    'tiers/memory/spill/spill_source.h',
                    'tiers/memory/topology.h'],
    'examples': [API, 'libtorch'],
    'python': [API, 'libtorch'],
    'bench': None,
    'tests': None,
}

# Of Abseil, all that the public headers may show.
API_ABSEIL = re.compile(
    r'absl/(status/|types/span\.h|strings/string_view\.h|time/)')

# Foreign header -> where it may be included. A folder ends with a slash; a
# pattern after '*' must match the file's name.
DOORS = [
    (r'liburing\.h|linux/io_uring\.h',
     ['aio/uring_*.cc', 'aio/uring/*.cc', 'bench/io/uring_*.cc']),
    (r'hwloc(\.h|/)', ['tiers/memory/topology.cc']),
    (r'libpmem2?\.h', ['tiers/pmem/persist_domain.cc']),
    (r'sqlite3\.h', ['tiers/catalog.cc']),
    (r'(cuda|nccl|cub|cublas|cupti|nvml|thrust)\w*(\.h|/)', ['kernels/cuda/']),
    (r'hwy/', ['kernels/cpu/']),
    (r'xxh\w*\.h', ['kernels/', 'tests/']),
    (r'(torch|ATen|c10)/',
     ['libtorch/', 'examples/', 'tests/libtorch/', 'tests/examples/',
      'tests/install/torch_app/', 'tests/support/accelerator/torch/',
      'bench/']),
    (r'nlohmann/', ['checkpoint/*.cc', 'machine/*.cc', 'zero_config/*.cc',
                    'libtorch/python/*.cc', 'daemon/*.cc', 'examples/*.cc',
                    'bench/*.cc', 'tests/']),
    (r'toml\+\+/', ['daemon/config/toml_tree.cc']),
    (r'flatbuffers/', ['daemon/wire/tables/flat_tables.h', 'tests/daemon/wire/']),
    (r'spdlog/', ['daemon/log/log.cc']),
    (r'systemd/', ['daemon/server/service_manager.cc']),
    (r'prometheus/', ['daemon/metrics/metrics_text.cc']),
    (r'(sys/socket|sys/un|netinet/\w+|arpa/inet)\.h|CLI/',
     ['daemon/', 'tests/daemon/']),
    (r'(gtest|gmock)/', ['tests/']),
    (r'benchmark/', ['bench/']),
    (r'absl/log/|absl/flags/|absl/synchronization/mutex\.h', []),
]

_INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
_MACRO_INCLUDE = re.compile(r'^\s*#\s*include\s+(\w+)')
# Highway compiles a file once for each target by including it again.
HIGHWAY = {'HWY_TARGET_INCLUDE'}


def layer_of(path):
    best = None
    for layer in LAYERS:
        if path.startswith(layer + '/') and len(layer) > len(best or ''):
            best = layer
    return best


def may_pass(path, places):
    for place in places:
        folder, star, pattern = place.partition('*')
        if not star:
            if path == place or (place.endswith('/') and
                                 path.startswith(place)):
                return True
        elif path.startswith(folder) and path.endswith(pattern):
            # One folder's files for a name's pattern, else a whole subtree.
            if folder.endswith('/') or '/' not in path[len(folder):]:
                return True
    return False


def check(tree, file):
    found = []
    own = layer_of(file.path)
    if own is None:
        found.append(file.says(1, 'is in no layer of tests/tidy/includes.py'))
        return found
    for number, line in enumerate(file.lines, 1):
        macro = _MACRO_INCLUDE.match(line)
        if macro and macro[1] not in HIGHWAY:
            found.append(file.says(number, f'includes by macro {macro[1]}'))
        match = _INCLUDE.match(line)
        if match:
            problem = _problem(tree, file, own, match[1], match[2])
            if problem:
                found.append(file.says(number, problem))
    return found


def _problem(tree, file, own, quote, name):
    for pattern, places in DOORS:
        if re.match(pattern, name):
            if may_pass(file.path, places):
                return None
            door = ', '.join(places) or 'nowhere'
            return f'{name} may be included in {door}, not here'
    if name.startswith('absl/'):
        if own == API and not API_ABSEIL.match(name):
            return f'a public header may not include {name}'
        return None
    if quote == '<':
        return None
    target = _target_of(file, name)
    if target not in tree.paths:
        return f'{name} is no file of the tree (includes start at its root)'
    layer = layer_of(target)
    allowed = LAYERS[own]
    if layer == own or allowed is None or layer in allowed or (
            target in allowed):
        return None
    return f'{own} may not include {layer} ({name})'


def _target_of(file, name):
    """The path in the tree of what `file` includes in quotes."""
    if name.startswith('terrace/torch/'):
        return f'libtorch/include/{name}'
    # tests/install has a program from outside the tree.
    if name.startswith('terrace/') or file.path.startswith('tests/install/'):
        return f'include/{name}'
    return name


def targets(tree, file):
    """(line, path) of each file of the tree that this one includes."""
    for number, line in enumerate(file.lines, 1):
        match = _INCLUDE.match(line)
        if match and match[1] == '"':
            target = _target_of(file, match[2])
            if target in tree.paths:
                yield number, target
