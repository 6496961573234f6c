#!/bin/bash
# Written by `prime-train run --slurm`. Near its time limit the job saves and requeues itself.
#SBATCH --job-name=it-s
#SBATCH --chdir=/work
#SBATCH --output="/data/runs/it's 100 %%/slurm/job-%j.log"
#SBATCH --open-mode=append
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=25
#SBATCH --gres=gpu:8
#SBATCH --mem=98304M
#SBATCH --time=0-10:00:00
#SBATCH --signal=B:TERM@90
#SBATCH --requeue
#SBATCH --export=HF_TOKEN,HOME,PATH
#SBATCH --partition=gpu
#SBATCH --account=lab
#SBATCH --constraint="h100&nvlink"
#SBATCH --exclusive

# exec: Slurm signals this process, which passes the signal on to the run and then decides what follows.
exec /opt/python -P -m prime_train.away.slurm.slurm_program '/data/runs/it'"'"'s' --max-fruitless 3 -- /data/run.toml --set 'eval.prompts=["a b"]' --resume auto
