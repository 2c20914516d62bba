"""Every source of the tree is compiled and every test is one of ctest's."""

import json
import pathlib
import re
import subprocess

# Folders that a build without a feature leaves out. They are checked wherever
# the feature is on, as in the host preset.
FEATURE_FOLDERS = {
    'torch': ['libtorch/', 'tests/libtorch/', 'examples/', 'tests/examples/',
              'tests/support/accelerator/torch/', 'bench/hook/'],
    'pmem': ['tiers/pmem/persist_domain.cc'],
    'cuda': ['kernels/cuda/cuda_module.cc'],
    'torch_cuda': ['libtorch/accelerator/cuda_',
                   'tests/libtorch/accelerator/cuda_'],
}
# Built by a test of their own, against the installed package.
INSTALL_TEST = 'tests/install/install_test.cmake'
OWN_BUILD = {'tests/install/app/app.cc': INSTALL_TEST,
             'tests/install/torch_app/app.cc': INSTALL_TEST}
# Objects that are compiled once for several programs, and one of these.
SHARED_OBJECTS = {'contract_tests': 'contract_test',
                  'contract_bytes_tests': 'contract_bytes_test',
                  'fault_sweep_tests': 'fault_sweep_test',
                  'optimizer_tests': 'optimizer_test',
                  'optimizer_runtime_tests': 'optimizer_runtime_test',
                  'checkpoint_resume_tests': 'checkpoint_resume_test',
                  'checkpoint_job_tests': 'checkpoint_test',
                  'simulation_world': 'simulation_test',
                  'random_operations_tests': 'simulation_test',
                  'byte_customers_tests': 'byte_simulation_test',
                  'torch_hook_tests': 'torch_hook_test',
                  'torch_offload_tests': 'torch_offload_test',
                  'torch_activations_tests': 'torch_activations_test',
                  'torch_joined_tests': 'torch_joined_test'}


def check(tree, build, ctest, without):
    commands = json.loads((build / 'compile_commands.json').read_text())
    listing = subprocess.run(
        [ctest, '--show-only=json-v1'], cwd=build, check=True,
        stdout=subprocess.PIPE).stdout
    return check_lists(tree, commands, json.loads(listing)['tests'], without)


def sources_of(command):
    """The file that is compiled, or what a unit of several files includes."""
    path = pathlib.Path(command['directory'], command['file']).resolve()
    if not (path.name.startswith('unity_') and path.suffix == '.cxx'):
        return [path]
    return [pathlib.Path(included).resolve() for included in
            re.findall(r'^#include "(.*)"$', path.read_text(), re.M)]


def check_lists(tree, commands, tests, without):
    """`commands` as in compile_commands.json, `tests` as ctest lists them."""
    targets = {}    # source -> the targets that compile it
    for command in commands:
        output = command.get('output') or command.get('command', '')
        match = re.search(r'CMakeFiles/([^/]+)\.dir/', output)
        for path in sources_of(command):
            try:
                source = path.relative_to(tree.root).as_posix()
            except ValueError:
                continue    # generated, in the build folder
            target = match[1] if match else ''
            targets.setdefault(source, set()).add(
                SHARED_OBJECTS.get(target, target))
    programs = {pathlib.Path(test['command'][0]).name
                for test in tests if test.get('command')}
    absent = tuple(folder for feature in without
                   for folder in FEATURE_FOLDERS[feature])
    found = []
    for file in tree.files:
        if not file.path.endswith('.cc'):
            continue
        if file.path in OWN_BUILD:
            if OWN_BUILD[file.path] not in tree.paths:
                found.append(file.says(1, 'nothing builds it'))
        elif file.path not in targets:
            if not absent or not file.path.startswith(absent):
                found.append(file.says(1, 'no target compiles it'))
        elif file.path.startswith('tests/') and (
                file.path.endswith('_test.cc')):
            if programs.isdisjoint(targets[file.path]):
                found.append(file.says(1, 'ctest does not run it'))
    return found
